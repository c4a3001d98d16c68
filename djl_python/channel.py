"""An asyncio channel of protocol messages over a connected Unix socket.

Runs in the front end (one per worker) and in the worker (one to the front end, one to its engine). Everything sent in
one turn of the event loop leaves as one frame.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from .protocol import AnyMessage, FrameReader, encode_frame

SOCKET_BUFFER_BYTES = 1 << 20


class Channel(asyncio.Protocol):
    """Messages out with `send`, messages in by callback, the peer's death by callback.

    Callbacks run in the event loop: `on_messages` once per read with everything it completed, `on_closed` exactly
    once, also when the peer was killed.
    """

    def __init__(self, on_messages: Callable[[list[AnyMessage]], None], on_closed: Callable[[], None]) -> None:
        self._on_messages = on_messages
        self._on_closed = on_closed
        self._reader = FrameReader()
        self._outgoing: list[AnyMessage] = []
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self.closed = False

    @classmethod
    async def connect(
        cls,
        sock: socket.socket,
        on_messages: Callable[[list[AnyMessage]], None],
        on_closed: Callable[[], None],
    ) -> Channel:
        """Take over a connected socket."""
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        sock.setblocking(False)
        _, channel = await asyncio.get_running_loop().create_connection(lambda: cls(on_messages, on_closed), sock=sock)
        return channel

    def send(self, message: AnyMessage) -> None:
        """Queue a message for the frame that leaves at the end of this loop turn. Dropped once closed."""
        if self.closed:
            return
        if not self._outgoing:
            self._loop.call_soon(self.flush)
        self._outgoing.append(message)

    def flush(self) -> None:
        """Send what is queued now."""
        if self._outgoing and self._transport is not None and not self.closed:
            self._transport.write(encode_frame(self._outgoing))
        self._outgoing = []

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

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # of a socket; uvloop's has no such base class
        self._transport.set_write_buffer_limits(high=1 << 26)

    def data_received(self, data: bytes) -> None:
        self._on_messages(self._reader.feed(data))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed:
            self.closed = True
            self._on_closed()
