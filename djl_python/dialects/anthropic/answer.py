"""The answer to a request for a message: whole, or as a stream of events. Runs in the worker.

A message is a list of blocks: reasoning, text, calls of tools, in the order in which the model writes them. In a stream
a block begins, gets deltas, and stops, before the next one begins.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ...core.errors import ServingError
from ...core.types import Delta, Finish, FinishReason
from ...formats.json_framing import JSON, SSE, encode_json
from ..shared.base import Formatter
from ..shared.chat.tools import whole_arguments
from ..shared.framing import around
from .errors import error_event
from .shapes import (
    AnswerBlock,
    BlockDelta,
    BlockStart,
    BlockStop,
    Ending,
    Event,
    InputDelta,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageText,
    MessageThinking,
    MessageToolUse,
    MessageUsage,
    Ping,
    StopReason,
    TextDelta,
    ThinkingDelta,
)

_THINKING: Final = "thinking"
_TEXT: Final = "text"
_CALL: Final = "call"


def _event(event: Event) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(event.__struct_config__.tag).encode(), encode_json(event))


@dataclass(slots=True)
class _Block:
    """A block so far. `key` distinguishes it from the next one: its kind, and the index of its call."""

    key: tuple[str, int]
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    def made(self) -> AnswerBlock | None:
        """The block of a whole message; None for a call whose input has been cut off."""
        content = "".join(self.pieces)
        match self.key[0]:
            case "thinking":
                return MessageThinking(content)
            case "text":
                return MessageText(content)
        arguments = whole_arguments(content)
        return None if arguments is None else MessageToolUse(self.id, self.name, arguments)

    def begun(self) -> AnswerBlock:
        """The block as it begins in a stream."""
        match self.key[0]:
            case "thinking":
                return MessageThinking("")
            case "text":
                return MessageText("")
        return MessageToolUse(self.id, self.name, {})

    def delta(self, piece: str) -> TextDelta | ThinkingDelta | InputDelta:
        """More of the block."""
        match self.key[0]:
            case "thinking":
                return ThinkingDelta(piece)
            case "text":
                return TextDelta(piece)
        return InputDelta(piece)


class MessageFormatter(Formatter):
    """The answer to one request.

    Args:
        stream: whether to answer with events.
        model: the model's name in the answer.
        headers: further response headers.
    """

    shows_logprobs = False

    def __init__(self, *, stream: bool, model: str, headers: Mapping[str, str]) -> None:
        self.stream = stream
        self.headers = {"content-type": f"{SSE}; charset=utf-8" if stream else JSON, **headers}
        self.keep_alive = _event(Ping()) if stream else b""
        self._model = model
        self._id = f"msg_{uuid.uuid4().hex[:24]}"
        self._prompt_tokens = 0
        self._begun = False
        self._blocks: list[_Block] = []
        self._text: Callable[[str], bytes] | None = None  # encodes a delta of the last block, while that is text
        self._finish: Finish | None = None

    def prepared(self, prompt_ids: Sequence[list[int]], *, splits_reasoning: bool) -> None:
        self._prompt_tokens = sum(map(len, prompt_ids))

    def push(self, delta: Delta) -> bytes:
        self._finish = delta.finish or self._finish
        if not self.stream:
            for block, piece in self._pieces(delta):
                block.pieces.append(piece)
            return b""
        events = [] if self._begun else [_event(MessageStart(self._message([], None)))]
        self._begun = True
        for block, piece in self._pieces(delta):
            index = len(self._blocks) - 1
            if not block.pieces:  # it begins
                events += [_event(BlockStop(index - 1))] if index else []
                events.append(_event(BlockStart(index, block.begun())))
                block.pieces.append("")
                self._text = _text_delta(index) if block.key[0] == _TEXT else None
            if piece:
                text = self._text
                events.append(_event(BlockDelta(index, block.delta(piece))) if text is None else text(piece))
        return b"".join(events)

    def end(self) -> bytes:
        if not self.stream:
            blocks = [made for block in self._blocks if (made := block.made()) is not None]
            return encode_json(self._message(blocks, self._finish))
        finish = self._finish
        assert finish is not None
        ending = Ending(self._reason(finish), finish.stop)
        events: list[Event] = [BlockStop(len(self._blocks) - 1)] if self._blocks else []
        events += [MessageDelta(ending, self._usage(finish)), MessageStop()]
        return b"".join(map(_event, events))

    def error(self, error: ServingError) -> bytes:
        return error_event(error)

    def _pieces(self, delta: Delta) -> Iterator[tuple[_Block, str]]:
        """(the key of the current block, the text that a step adds to it)"""
        if delta.reasoning:
            yield self._block((_THINKING, 0)), delta.reasoning
        if delta.text:
            yield self._block((_TEXT, 0)), delta.text
        for call in delta.tool_calls:
            yield self._block((_CALL, call.index), call.id, call.name), call.arguments

    def _block(self, key: tuple[str, int], id_: str = "", name: str = "") -> _Block:
        if not self._blocks or self._blocks[-1].key != key:
            self._blocks.append(_Block(key, id_, name))
        return self._blocks[-1]

    def _message(self, content: list[Any], finish: Finish | None) -> Message:
        return Message(
            id=self._id,
            model=self._model,
            content=content,
            stop_reason=None if finish is None else self._reason(finish),
            stop_sequence=None if finish is None else finish.stop,
            usage=self._usage(finish),
        )

    def _usage(self, finish: Finish | None) -> MessageUsage:
        if finish is None:
            return MessageUsage(input_tokens=self._prompt_tokens, output_tokens=0)
        cached = finish.cached_tokens or 0
        return MessageUsage(
            input_tokens=finish.prompt_tokens - cached,
            cache_read_input_tokens=cached,
            output_tokens=finish.generated_tokens,
        )

    def _reason(self, finish: Finish) -> StopReason:
        if finish.reason is FinishReason.LENGTH:
            return "max_tokens"
        if finish.stop is not None:
            return "stop_sequence"
        return "tool_use" if any(block.key[0] == _CALL for block in self._blocks) else "end_turn"


def _text_delta(index: int) -> Callable[[str], bytes]:
    return around(lambda text: _event(BlockDelta(index, TextDelta(text))))
