"""The items of a request's `input`: messages, calls of functions and their outputs, reasoning. Read in the worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ...core import budgets

_LABEL: Final = "Without effect."
Label = Annotated[Any, Meta(description=_LABEL)]


class InputTextPart(msgspec.Struct, frozen=True, tag_field="type", tag="input_text"):
    """Text."""

    text: str
    prompt_cache_breakpoint: Label = None


class InputImagePart(msgspec.Struct, frozen=True, tag_field="type", tag="input_image"):
    """An image: a data URL or an http(s) URL. `detail` has no effect: the model's own image processor decides on the
    resolution."""

    image_url: Annotated[str, Meta(min_length=1)]
    detail: str | None = None
    prompt_cache_breakpoint: Label = None


class OutputTextPart(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    """Text of an earlier answer."""

    text: str
    annotations: Label = None
    logprobs: Label = None


class OutputRefusalPart(msgspec.Struct, frozen=True, tag_field="type", tag="refusal"):
    """The text of a refusal in an earlier answer."""

    refusal: str


class SummaryTextPart(msgspec.Struct, frozen=True, tag_field="type", tag="summary_text"):
    """A summary of reasoning."""

    text: str


class ReasoningTextPart(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    """Reasoning."""

    text: str


Part = InputTextPart | InputImagePart | OutputTextPart | OutputRefusalPart


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A message. Its type may be left out."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]
    id: str | None = None
    status: Label = None
    phase: Label = None


class FunctionCallItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A call that an earlier answer made. `arguments` is JSON as text."""

    call_id: Annotated[str, Meta(min_length=1)]
    name: str
    arguments: str
    id: str | None = None
    status: Label = None


class FunctionOutputItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call_output"):
    """What the function has returned."""

    call_id: Annotated[str, Meta(min_length=1)]
    output: str | list[InputTextPart | InputImagePart]
    id: str | None = None
    status: Label = None


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """Reasoning of an earlier answer: its `content`, or else what `encrypted_content` keeps of it."""

    content: list[ReasoningTextPart] | None = None
    encrypted_content: str | None = None
    summary: list[SummaryTextPart] | None = None
    id: str | None = None
    status: Label = None


Item = MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem
Items = Annotated[list[Item], Meta(max_length=budgets.MESSAGES.most)]


def with_types(body: dict[str, Any]) -> dict[str, Any]:
    """The body, in which every message of `input` has its type: clients leave it out."""
    items = body.get("input")
    return {**body, "input": typed(items)} if isinstance(items, list) else body


def typed(items: Sequence[Any]) -> list[Any]:
    """Items, in which every message has its type."""
    return [
        {"type": "message", **item} if isinstance(item, dict) and "role" in item and "type" not in item else item
        for item in items
    ]
