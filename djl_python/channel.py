"""An asyncio channel of protocol messages over a connected Unix socket.

Runs in the front end (one per worker) and in the worker (one to the front end, one to its engine). Everything that is
sent while a frame is being handled, or else in one turn of the event loop, leaves as one frame; long ones before that.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, MutableMapping
from typing import Final, cast
from weakref import WeakKeyDictionary

from .protocol import AnyMessage, FrameReader, FrameWriter

SOCKET_BUFFER_BYTES: Final = 1 << 20
# asyncio's own buffer for a read is larger than malloc keeps: each read would map memory and give it back.
_READ_BYTES: Final = 1 << 16
# Of each event loop the channels that have something to send, in the order in which they got it.
_unsent: Final[MutableMapping[asyncio.AbstractEventLoop, dict[Channel, None]]] = WeakKeyDictionary()


def _nothing() -> None:
    """Nobody has anything to add."""


class Channel(asyncio.BufferedProtocol):
    """Messages out with `send`, messages in by callback, the peer's death by callback; once it is attached to a socket.

    Attributes:
        before_frame: called when a frame is about to leave; what it sends goes along.

    Callbacks run in the event loop: `on_messages` once per read with everything it completed, `on_closed` exactly
    once, also when the peer was killed.
    """

    def __init__(self, on_messages: Callable[[list[AnyMessage]], None], on_closed: Callable[[], None]) -> None:
        self._on_messages = on_messages
        self._on_closed = on_closed
        self._reader = FrameReader()
        self._read = memoryview(bytearray(_READ_BYTES))
        self._outgoing = FrameWriter()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._unsent = _unsent.setdefault(self._loop, {})  # shared with the loop's other channels
        self.closed = False
        self.before_frame: Callable[[], None] = _nothing

    async def attach(self, sock: socket.socket) -> None:
        """Take over a connected socket. What has come already may be handed over before this returns."""
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        sock.setblocking(False)
        await self._loop.create_connection(lambda: self, sock=sock)

    def send(self, message: AnyMessage) -> None:
        """Queue a message for the next frame; see the module. Dropped once closed.

        Raises:
            OverflowError, TypeError, ValueError: it can't be encoded. Others are not touched by that.
        """
        if self.closed:
            return
        begins = not self._outgoing
        self._outgoing.add(message)
        if self._outgoing.full:
            self._send_frame()
        elif begins:
            self._loop.call_soon(self.flush)
            self._unsent[self] = None

    def flush(self) -> None:
        """Send what is queued now."""
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
        frame = self._outgoing.take()
        if self._transport is not None and not self.closed:
            self._transport.write(frame)

    async def drain(self) -> None:
        """Flush, then wait until the kernel has everything (before a deliberate exit)."""
        self.flush()
        while self._transport is not None and not self.closed and self._transport.get_write_buffer_size():
            await asyncio.sleep(0.001)

    def close(self) -> None:
        """Close; `on_closed` follows."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    # asyncio.BufferedProtocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # of a socket; uvloop's has no such base class
        self._transport.set_write_buffer_limits(high=1 << 26)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._read

    def buffer_updated(self, nbytes: int) -> None:
        self._on_messages(self._reader.feed(self._read[:nbytes]))
        for channel in tuple(self._unsent):
            channel.flush()  # not a turn of the loop later

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed:
            self.closed = True
            self._on_closed()
