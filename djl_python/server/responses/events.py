"""The events of a response that is made in the background, for those who follow it. Runs in the front end's event loop.

Events are numbered from 0 on: an event's number is its place. A client that has lost its connection goes on after the
last one that it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from ...dialects.shared.base import KEEP_ALIVE_S, StreamedAnswer
from ...formats.json_framing import SSE, SSE_KEEP_ALIVE

#: How much a follower gets at once, whole events: one that reads slowly holds no copy of all of them.
PIECE_BYTES: Final = 64 << 10
_END: Final = b"\n\n"
_COMMENT: Final = b":"


class EventLog:
    """The events so far.

    Attributes:
        size: their bytes, and those of one whose end has not come yet.
        last: the last one; b"" before the first.
    """

    def __init__(self) -> None:
        self.size = 0
        self._events: list[bytes] = []
        self._rest = b""
        self._ended = False
        self._changed = asyncio.Event()

    @property
    def last(self) -> bytes:
        return self._events[-1] if self._events else b""

    def __len__(self) -> int:
        return len(self._events)

    def add(self, data: bytes) -> int:
        """More bytes of the stream; returns by how many `size` has grown: signs of life are not kept."""
        before = len(self._rest)
        *events, self._rest = (self._rest + data).split(_END)
        kept = [event + _END for event in events if not event.startswith(_COMMENT)]
        self._events += kept
        grown = sum(map(len, kept)) + len(self._rest) - before
        self.size += grown
        if kept:
            self._wake()
        return grown

    def drop_incomplete(self) -> int:
        """The stream has broken off: the next event does not go on with the bytes of one whose end did not come.
        Returns by how many `size` has grown, at most 0.
        """
        grown, self._rest = -len(self._rest), b""
        self.size += grown
        return grown

    def end(self) -> None:
        """No more come."""
        self._ended = True
        self._wake()

    def answer(self, after: int = -1) -> StreamedAnswer:
        """The events whose numbers are higher than `after`, as they come."""
        return StreamedAnswer(self._after(after), {"content-type": f"{SSE}; charset=utf-8"})

    async def _after(self, number: int) -> AsyncGenerator[bytes, None]:
        at = number + 1
        while True:
            changed, ended = self._changed, self._ended
            if events := self._some(at):
                at += len(events)
                yield b"".join(events)
            elif ended:
                return
            else:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        await changed.wait()
                except TimeoutError:
                    yield SSE_KEEP_ALIVE

    def _some(self, at: int) -> list[bytes]:
        """Events from number `at` on, about `PIECE_BYTES` of them."""
        end, size = at, 0
        while end < len(self._events) and size < PIECE_BYTES:
            size += len(self._events[end])
            end += 1
        return self._events[at:end]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
