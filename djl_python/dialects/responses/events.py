"""The events of a stream. Made in the worker.

Source: OpenAI's API reference (streaming events of responses). Every event has a number, from 0 on.
"""

from __future__ import annotations

from typing import get_args

import msgspec

from ...formats.json_framing import encode_json
from ..shared.chat.shapes import TokenLogprob
from .errors import ErrorEvent
from .shapes import OutputItem, ResponseObject, ResponseReasoningText, ResponseText

Content = ResponseText | ResponseReasoningText


class _Numbered(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    sequence_number: int


class ResponseCreated(_Numbered, frozen=True, kw_only=True, tag="response.created"):
    """The response begins."""

    response: ResponseObject


class ResponseQueued(_Numbered, frozen=True, kw_only=True, tag="response.queued"):
    """The response waits; of one in the background alone. The front end sends it."""

    response: ResponseObject


class ResponseInProgress(_Numbered, frozen=True, kw_only=True, tag="response.in_progress"):
    """The model generates."""

    response: ResponseObject


class ItemAdded(_Numbered, frozen=True, kw_only=True, tag="response.output_item.added"):
    """An item begins, empty."""

    output_index: int
    item: OutputItem


class PartAdded(_Numbered, frozen=True, kw_only=True, tag="response.content_part.added"):
    """A part of a message, or of reasoning, begins, empty."""

    item_id: str
    output_index: int
    content_index: int = 0
    part: Content


class OutputTextDelta(_Numbered, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """More text."""

    item_id: str
    output_index: int
    content_index: int = 0
    delta: str
    logprobs: list[TokenLogprob] = []


class OutputTextDone(_Numbered, frozen=True, kw_only=True, tag="response.output_text.done"):
    """The text is complete."""

    item_id: str
    output_index: int
    content_index: int = 0
    text: str
    logprobs: list[TokenLogprob] = []


class ReasoningTextDelta(_Numbered, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """More reasoning."""

    item_id: str
    output_index: int
    content_index: int = 0
    delta: str


class ReasoningTextDone(_Numbered, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """The reasoning is complete."""

    item_id: str
    output_index: int
    content_index: int = 0
    text: str


class PartDone(_Numbered, frozen=True, kw_only=True, tag="response.content_part.done"):
    """The part is complete."""

    item_id: str
    output_index: int
    content_index: int = 0
    part: Content


class ArgumentsDelta(_Numbered, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(_Numbered, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    """A call's arguments are complete."""

    item_id: str
    output_index: int
    name: str
    arguments: str


class ItemDone(_Numbered, frozen=True, kw_only=True, tag="response.output_item.done"):
    """The item is complete, or cut off."""

    output_index: int
    item: OutputItem


class ResponseCompleted(_Numbered, frozen=True, kw_only=True, tag="response.completed"):
    """The response is complete."""

    response: ResponseObject


class ResponseIncomplete(_Numbered, frozen=True, kw_only=True, tag="response.incomplete"):
    """The response was cut off."""

    response: ResponseObject


class ResponseFailed(_Numbered, frozen=True, kw_only=True, tag="response.failed"):
    """The response ends with an error."""

    response: ResponseObject


Event = (
    ResponseCreated
    | ResponseQueued
    | ResponseInProgress
    | ItemAdded
    | PartAdded
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | PartDone
    | ArgumentsDelta
    | ArgumentsDone
    | ItemDone
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ErrorEvent
)
#: The same for /openapi.json.
EVENTS = get_args(Event)


def encode_event(event: Event) -> bytes:
    """A server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (str(event.__struct_config__.tag).encode(), encode_json(event))
