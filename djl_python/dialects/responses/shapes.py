"""The response object and its output items. Made in the worker.

Source: OpenAI's API reference (the response object).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..shared.chat.shapes import TokenLogprob
from .errors import FailureCode
from .tools import ResponseTool, ResponseToolChoice

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class TextFormatText(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Any text."""


class TextFormatObject(msgspec.Struct, frozen=True, tag_field="type", tag="json_object"):
    """A JSON object."""


class TextFormatSchema(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="json_schema"):
    """JSON that is an instance of a schema, which is always enforced, `strict` or not."""

    name: Annotated[str, Meta(min_length=1)]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the text. `verbosity` has no effect."""

    format: TextFormatText | TextFormatObject | TextFormatSchema | None = None
    verbosity: Annotated[Literal["low", "medium", "high"], Meta(description="Without effect.")] | None = None


class ReasoningConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How much the model should reason (`effort`, a variable of its chat template). There are no summaries."""

    effort: str | None = None
    summary: Annotated[str, Meta(description="Without effect.")] | None = None


class ResponseText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """Text."""

    text: str
    annotations: list[Any] = []
    logprobs: Annotated[list[TokenLogprob], Meta(description="If the request includes them.")] = []


class ResponseReasoningText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    """Reasoning."""

    text: str


class ResponseMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A message."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[ResponseText]


class ResponseReasoning(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """The model's reasoning. `encrypted_content` is there if the request includes it, for clients to send back."""

    id: str
    status: ItemStatus
    summary: list[Any] = []
    content: list[ResponseReasoningText]
    encrypted_content: str | UnsetType = UNSET


class ResponseCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A call of a function. The arguments of an incomplete one end where they were cut off."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


OutputItem = ResponseMessage | ResponseReasoning | ResponseCall


class InputDetails(msgspec.Struct, frozen=True, kw_only=True):
    """How many of the prompt's tokens the engine found in its cache."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct, frozen=True):
    """How many of the answer's tokens were reasoning, the marks around it included."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why the answer is incomplete: it has `max_output_tokens`, or the context is full."""

    reason: Literal["max_output_tokens"]


class ResponseFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why the response has failed."""

    code: FailureCode
    message: str


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """A response: the settings of its request, and its output so far."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    background: bool
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None = None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningConfig
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: TextConfig
    tool_choice: ResponseToolChoice
    tools: list[ResponseTool]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None = None
    user: str | None


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens an input has."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
