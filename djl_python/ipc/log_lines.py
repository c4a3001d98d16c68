"""Copies of log lines on their way from every process to the front end, which keeps the last ones.

Runs in every process. stderr has all of them; this is for whoever can't see stderr. One socket pair is inherited by all
children of the front end and by theirs: each record is one packet, so lines of several processes never mix. Sending
never waits: what finds the socket full is lost, and the next line that gets through says how many were.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from ..core import logs

#: A longer record is cut off.
MAX_LINE_BYTES: Final = 16 << 10

_ends: Final[list[socket.socket]] = []  # the one that this process and its children send to, if there is one


def descriptors() -> tuple[int, ...]:
    """The descriptor that a child needs to send its lines to the front end; none where nobody gathers them."""
    return tuple(end.fileno() for end in _ends)


@contextmanager
def gathered(take: Callable[[str], None]) -> Iterator[None]:
    """Have `take` called with every record that this process logs, and children that it starts meanwhile.

    For the front end's event loop, once at a time.
    """
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)

    def read() -> None:
        with suppress(BlockingIOError):
            while packet := ours.recv(MAX_LINE_BYTES):
                take(packet.decode(errors="replace"))

    loop.add_reader(ours, read)
    logs.add_reader(take)
    _ends.append(theirs)
    try:
        yield
    finally:
        loop.remove_reader(ours)
        logs.remove_reader(take)
        _ends.remove(theirs)
        ours.close()
        theirs.close()


def send_to(descriptor: int) -> None:
    """In a child: send every record to the front end too, and have this process's children do so."""
    end = socket.socket(fileno=descriptor)
    _ends.append(end)
    logs.add_reader(_Sender(end))


class _Sender:
    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lost = 0

    def __call__(self, text: str) -> None:
        lost = f"({self._lost} records of this process are on stderr alone)\n" if self._lost else ""
        try:
            self._end.send((lost + text).encode(errors="replace")[:MAX_LINE_BYTES], socket.MSG_DONTWAIT)
        except OSError:  # it is full, or the front end has gone
            self._lost += 1
        else:
            self._lost = 0
