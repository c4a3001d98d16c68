"""The base of the tool call parsers: text is held until it is clear whether it is a call. Runs in the worker."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import ClassVar

from ...core.types import FinishReason, ToolCallDelta, ToolUse
from .parser import ParsedText, ToolParser


class SyntaxParser(ToolParser):
    """A parser as a state machine.

    A state consumes what it can of `_text`, and returns whether the current state may get further if called again.
    `_raw` is text consumed as the beginning of a call that is not certain yet. White space around calls is dropped.
    """

    #: Marks that begin and end calls; by default `markers`.
    marks: tuple[str, ...] = ()

    def __init__(self, use: ToolUse) -> None:
        self._names = frozenset(tool["function"]["name"] for tool in use.tools)
        self._parallel = use.parallel
        self._new_id = self.call_id
        self._text = self._raw = self._space = ""
        self._calls_begun = 0
        self._among_calls = False  # after a call, in a list or before an end mark: the rest there is not content
        self._content: list[str] = []
        self._calls: list[ToolCallDelta] = []
        self._state: Callable[[], bool] = self._begin

    def feed(self, text: str) -> ParsedText:
        self._text += text
        while self._text and self._state():
            pass
        return self._heard()

    def finish(self, reason: FinishReason) -> ParsedText:
        if not (self._among_calls or (reason is FinishReason.LENGTH and self._has_begun())):
            self._say(self._raw + self._text)
        if not self._calls_begun:
            self._content.append(self._space)
        return self._heard()

    def _has_begun(self) -> bool:
        """Whether the text that is held has, or could have, begun a call."""
        held = (self._raw + self._text).lstrip()
        return any(held.startswith(mark) or mark.startswith(held) for mark in self.marks or self.markers)

    @abc.abstractmethod
    def _begin(self) -> bool:
        """The state at the beginning of a text."""

    def _plain(self) -> bool:
        """The state in which no call can come any more."""
        self._say(self._text)
        self._text = ""
        return False

    def _heard(self) -> ParsedText:
        calls = (call for call in self._calls if self._parallel or call.index == 0)
        heard = ParsedText("".join(self._content), tuple(calls))
        self._content.clear()
        self._calls.clear()
        return heard

    def _hold(self, length: int) -> None:
        """Hold the next `length` characters, which may belong to a call."""
        self._raw += self._text[:length]
        self._text = self._text[length:]

    def _release(self) -> None:
        """Pass on the held text as content: it is not a call."""
        self._say(self._raw)
        self._raw = ""

    def _say(self, text: str) -> None:
        visible = text.rstrip()
        if visible:
            self._content.append(self._space + visible)
            self._space = ""
        self._space += text[len(visible) :]

    def _call(self, name: str, arguments: str) -> None:
        self._raw = self._space = ""
        self._calls.append(ToolCallDelta(self._calls_begun, self._new_id(), name, arguments))
        self._calls_begun += 1

    def _say_up_to(self, *marks: str) -> str:
        """Pass on the text before the first of `marks`, hold the mark and return it; "": there is none (yet)."""
        places = [(at, mark) for mark in marks if (at := self._text.find(mark)) >= 0]
        at, first = min(places, default=(len(self._text) - max(_overlap(self._text, mark) for mark in marks), ""))
        self._say(self._text[:at])
        self._text = self._text[at:]
        self._hold(len(first))
        return first

    def _begin_after(self, starts: tuple[str, ...], ends: tuple[str, ...]) -> str:
        """The mark that begins the next call, once it is held; end marks after calls are dropped."""
        mark = self._say_up_to(*starts, *(ends if self._calls_begun else ()))
        if mark and mark not in starts:
            self._raw = ""
            return self._begin_after(starts, ends)
        return mark

    def _skip_space(self) -> bool:
        """Hold leading white space; whether any other text follows."""
        self._hold(len(self._text) - len(self._text.lstrip()))
        return bool(self._text)


class BlockParser(SyntaxParser):
    """Calls between two marks, any number of times, between text; the last mark may be missing at the end.

    Calls are passed on when the block is complete, because only then can they be turned into JSON.
    """

    #: The mark that begins a block -> the mark that ends it.
    blocks: ClassVar[Mapping[str, str]]

    def __init__(self, use: ToolUse) -> None:
        super().__init__(use)
        self._opening = ""
        self.marks = (*self.blocks, *self.blocks.values())

    def finish(self, reason: FinishReason) -> ParsedText:
        if self._state == self._in_block and reason is not FinishReason.LENGTH:
            self._close_block(len(self._text), "")
        return super().finish(reason)

    def _begin(self) -> bool:
        self._opening = self._begin_after(tuple(self.blocks), tuple(self.blocks.values()))
        if not self._opening:
            return False
        self._state = self._in_block
        return True

    def _in_block(self) -> bool:
        end = self.blocks[self._opening]
        at = self._text.find(end)
        return at >= 0 and self._close_block(at, end)

    def _close_block(self, at: int, end: str) -> bool:
        """Parse the calls in the first `at` characters, before `end`."""
        calls = self._calls_of(self._text[:at].strip())
        self._hold(at + len(end))
        if not calls:
            self._release()
        for name, arguments in calls or ():
            self._call(name, arguments)
        self._state = self._begin
        return True

    @abc.abstractmethod
    def _calls_of(self, block: str) -> list[tuple[str, str]] | None:
        """Names and arguments (as JSON) of a block's calls; None: it has something else."""


def _overlap(text: str, marker: str) -> int:
    """How many of the last characters of `text` are the beginning of `marker`."""
    return next((n for n in range(min(len(text), len(marker) - 1), 0, -1) if marker.startswith(text[-n:])), 0)
