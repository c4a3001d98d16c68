"""An asyncio channel of protocol messages over a connected Unix socket.

Runs in the front end (one per worker) and in the worker (one to the front end, one to its engine). Messages sent while
one read is handled, or otherwise in one event loop iteration, leave as one frame; a full frame leaves at once.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, MutableMapping
from typing import Final, cast
from weakref import WeakKeyDictionary

from .framing import FrameReader, FrameWriter
from .protocol import AnyMessage

SOCKET_BUFFER_BYTES: Final = 1 << 20
# asyncio's default read buffer is larger than malloc keeps for reuse: each read would map and unmap memory.
_READ_BYTES: Final = 1 << 16
#: How many unsent bytes a channel may have before those who wait for `room` do.
UNSENT_BYTES: Final = 1 << 26
# The channels of each event loop that have unsent messages, in the order in which they got their first.
_unsent: Final[MutableMapping[asyncio.AbstractEventLoop, dict[Channel, None]]] = WeakKeyDictionary()


def _nothing() -> None:
    """The default `before_frame`: add nothing."""


class Channel(asyncio.BufferedProtocol):
    """Once attached to a socket: `send` queues messages; callbacks deliver received messages and the peer's death.

    Attributes:
        before_frame: called before `flush` sends a frame; messages that it sends go into that frame.
        frames: how many frames were sent.
        reads: how often anything was received.

    Callbacks run in the event loop: `on_messages` once per read, with all messages that the read completed; `on_closed`
    exactly once, even when the peer was killed.
    """

    def __init__(self, on_messages: Callable[[list[AnyMessage]], None], on_closed: Callable[[], None]) -> None:
        self._on_messages = on_messages
        self._on_closed = on_closed
        self._reader = FrameReader()
        self._read = memoryview(bytearray(_READ_BYTES))
        self._outgoing = FrameWriter()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._unsent = _unsent.setdefault(self._loop, {})  # shared with the other channels of the loop
        self.closed = False
        self.frames = self.reads = 0
        self.before_frame: Callable[[], None] = _nothing

    async def attach(self, sock: socket.socket) -> None:
        """Take over a connected socket. Messages that have already arrived may be delivered before this returns."""
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        sock.setblocking(False)
        await self._loop.create_connection(lambda: self, sock=sock)

    def send(self, message: AnyMessage) -> None:
        """Queue a message for the next frame, see the module's docstring; drop it once the channel is closed.

        Raises:
            OverflowError, TypeError, ValueError: the message can't be encoded. Other queued messages are unaffected.
        """
        if self.closed:
            return
        self._outgoing.add(message)
        if self._outgoing.full:
            self._send_frame()
        elif self not in self._unsent:
            self._loop.call_soon(self.flush)
            self._unsent[self] = None

    def flush(self) -> None:
        """Send the queued messages now."""
        if not self._outgoing:
            return
        try:
            self.before_frame()
        finally:
            self._send_frame()

    def _send_frame(self) -> None:
        if not self._outgoing:
            return
        self._unsent.pop(self, None)
        self.frames += 1
        frame = self._outgoing.take()
        if self._transport is not None and not self.closed:
            self._transport.write(frame)

    async def drain(self) -> None:
        """Flush, then wait until the kernel has everything (before a deliberate exit)."""
        self.flush()
        while self._transport is not None and not self.closed and self._transport.get_write_buffer_size():
            await asyncio.sleep(0.001)

    async def room(self) -> None:
        """Flush, then wait while there is more unsent than `UNSENT_BYTES`, or until the channel is closed."""
        self.flush()
        await self._has_room.wait()

    def close(self) -> None:
        """Flush and close the socket; `on_closed` is called afterwards."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    # asyncio.BufferedProtocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # a socket's; uvloop's has no such base class
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._read

    def buffer_updated(self, nbytes: int) -> None:
        self.reads += 1
        self._on_messages(self._reader.feed(self._read[:nbytes]))
        for channel in tuple(self._unsent):
            channel.flush()  # now, not in the next loop iteration

    def pause_writing(self) -> None:
        self._has_room.clear()

    def resume_writing(self) -> None:
        self._has_room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_room.set()
        if not self.closed:
            self.closed = True
            self._on_closed()
