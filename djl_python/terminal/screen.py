"""Answers on a terminal, as they come: plain, or rendered as Markdown. Runs in the command's own process.

Terminals obey control characters, and a model may write any: none of them but line feeds and tabs reach the screen.
"""

from __future__ import annotations

import re
from types import TracebackType
from typing import Final, Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_FENCE: Final = re.compile(r"^\s*(```|~~~)", re.MULTILINE)
_REFRESHES_PER_S: Final = 8


def harmless(text: str) -> str:
    """The text without control characters, those for the direction of writing included."""
    return _CONTROL.sub("", text.replace("\r\n", "\n"))


class ShownAnswer(Protocol):
    """Shows one answer; used as a context manager, whose end leaves the answer on the screen."""

    def __enter__(self) -> ShownAnswer: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def write(self, text: str) -> None:
        """Show a piece of the answer."""
        ...

    def reason(self, text: str) -> None:
        """Show a piece of the reasoning before it."""
        ...


class PlainAnswer:
    """Shows text as it is. Reasoning is dim, and a blank line ends it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._reasons = False
        self._last = "\n"

    def __enter__(self) -> PlainAnswer:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._last.endswith("\n"):
            self._console.print()

    def write(self, text: str) -> None:
        if self._reasons:
            self._reasons = False
            self._show("\n\n")
        self._show(text)

    def reason(self, text: str) -> None:
        self._reasons = True
        self._show(text, "dim")

    def _show(self, text: str, style: str = "") -> None:
        if text := harmless(text):
            self._console.print(Text(text, style), end="", soft_wrap=True)
            self._last = text


class MarkdownAnswer(PlainAnswer):
    """Renders Markdown: each block once it is complete; of the one that is being written, what fits on the screen."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._open = ""  # the block that is being written
        self._live = Live(console=console, refresh_per_second=_REFRESHES_PER_S, transient=True)

    def __exit__(self, *_: object) -> None:
        if self._live.is_started:
            self._live.stop()
        elif self._reasons:
            super().__exit__()
        if self._open.strip():
            self._console.print(Markdown(self._open))

    def write(self, text: str) -> None:
        if not self._live.is_started:
            if self._reasons:
                self._reasons = False
                self._show("\n\n")
            self._live.start()
        self._open += harmless(text)
        complete, self._open = blocks(self._open)
        for block in complete:
            self._console.print(Markdown(block), end="\n\n")
        self._live.update(self._end_of_open())

    def _end_of_open(self) -> RenderableType:
        lines = self._open.splitlines()
        room = max(self._console.height - 2, 1)
        if len(lines) <= room:
            return Markdown(self._open)
        return Text("\n".join(lines[-room:]))


def blocks(text: str) -> tuple[list[str], str]:
    """The complete blocks of a Markdown text, and the rest: a blank line ends a block, but not within a code fence."""
    complete: list[str] = []
    start = 0
    for blank in re.finditer(r"\n[ \t]*\n", text):
        if len(_FENCE.findall(text, start, blank.start())) % 2 == 0:
            block = text[start : blank.start()].lstrip("\n")
            if block.strip():
                complete.append(block)
            start = blank.end()
    return complete, text[start:]
