"""The message that answers a request, and the events of a stream of it. Runs in the worker.

Source: Anthropic's API reference (messages, streaming messages).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts. The prompt's tokens are `input_tokens` and those that the engine found in its cache."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int


class MessageThinking(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """The model's reasoning. There is nothing to sign here."""

    thinking: str
    signature: str = ""


class MessageText(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """MessageText."""

    text: str


class MessageToolUse(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = MessageThinking | MessageText | MessageToolUse
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. A call that `max_tokens` has cut off is left out."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    """The message, without content. Its output tokens are not known yet."""

    message: Message


class BlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: AnswerBlock


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """More reasoning."""

    thinking: str


class InputDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """More of a call's input, as JSON."""

    partial_json: str


class BlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """More of a block."""

    index: int
    delta: TextDelta | ThinkingDelta | InputDelta


class BlockStop(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """A block is complete."""

    index: int


class Ending(msgspec.Struct, frozen=True):
    """Why the message has ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The message has ended; `usage` counts all of it."""

    delta: Ending
    usage: MessageUsage


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The end of the stream."""


class Ping(msgspec.Struct, frozen=True, tag_field="type", tag="ping"):
    """A sign of life while there is nothing to send."""


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping


class TokenCount(msgspec.Struct, frozen=True):
    """How many tokens a prompt has."""

    input_tokens: int
