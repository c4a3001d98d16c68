"""Request bodies as they arrive: in the front end's memory until a worker has the call, or passed on to a receiver.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from ....core.errors import OverloadedError, TooLargeError
from ....dialects.shared.base import Answer
from .content_coding import Decoder


class Bodies:
    """The bytes that all bodies together hold in memory, and their limit."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0


class Receiver(Protocol):
    """Takes an upload piece by piece, so that it need not be in memory, and answers its request."""

    async def write(self, piece: bytes) -> None:
        """Take a piece; no other comes before this has ended.

        Raises:
            ServingError: the request is refused.
        """
        ...

    async def answer(self) -> Answer:
        """The body is complete: the request's answer.

        Raises:
            ServingError: the request is refused.
        """
        ...

    def abandon(self) -> None:
        """The upload is aborted: delete what has come. May be called during `write`, and repeatedly; ignored during
        `answer`.
        """
        ...


class Body:
    """One request's body.

    Attributes:
        decoder: decompresses the body, if the client compressed it.
        receiver: takes the body if it is not kept in memory, and limits it.
    """

    def __init__(self, bodies: Bodies) -> None:
        self.decoder: Decoder | None = None
        self.receiver: Receiver | None = None
        self._size = 0  # bytes that have arrived, kept or not
        self._max_bytes, self._too_large = 0, ""
        self._bodies = bodies
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._let_go = False

    def bound(self, max_bytes: int, too_large: str, declared: int) -> None:
        """Take so many bytes at most; `too_large` is what the error says.

        Raises:
            TooLargeError: so many have been declared that there are more.
        """
        self._max_bytes, self._too_large = max_bytes, too_large
        self._check(declared)

    def take(self, chunk: bytes) -> Awaitable[None] | None:
        """Take the data that has arrived; the caller awaits the result before it takes more.

        Raises:
            ServingError: the request is refused. What is awaited raises it too.
        """
        if self.decoder is None and self.receiver is None:
            self._keep(chunk)
            return None
        return self._pass_on(chunk)

    def end(self) -> None:
        """Note that the body is complete.

        Raises:
            PayloadError: it is not.
        """
        if self.decoder is not None:
            self.decoder.end()

    def whole(self) -> bytes:
        """All kept pieces, joined."""
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0] if self._pieces else b""

    def let_go(self) -> None:
        """Release all kept pieces, and take no more."""
        self._let_go = True
        self._pieces.clear()
        self._bodies.held_bytes -= self._held_bytes
        self._held_bytes = 0
        if self.receiver is not None:
            self.receiver.abandon()

    async def _pass_on(self, chunk: bytes) -> None:
        for piece in (chunk,) if self.decoder is None else self.decoder.pieces(chunk):
            if self._let_go:
                return
            if self.receiver is None:
                self._keep(piece)
            else:
                await self.receiver.write(piece)
            if self.decoder is not None:
                await asyncio.sleep(0)  # others have their turn: the pieces may be thousands

    def _keep(self, chunk: bytes) -> None:
        """Keep a piece in memory. All bodies together have a limit, but a body that is held alone is never refused."""
        self._size += len(chunk)
        self._check(self._size)
        self._pieces.append(chunk)
        self._held_bytes += len(chunk)
        self._bodies.held_bytes += len(chunk)
        if self._held_bytes < self._bodies.held_bytes > self._bodies.max_bytes:
            raise OverloadedError(
                f"requests of {self._bodies.max_bytes} bytes (max_bodies_size) are waiting already, try again later"
            )

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            raise TooLargeError(self._too_large)
