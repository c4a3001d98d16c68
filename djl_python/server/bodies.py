"""Requests' bodies while the front end has them: as they come in, and until a worker has the call.

Runs in the front end's event loop.
"""

from __future__ import annotations

from ..errors import OverloadedError


class Bodies:
    """What is held of all bodies together, in bytes, and how much that may be."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0


class Body:
    """One request's body.

    Attributes:
        size: bytes of it that have come.
    """

    def __init__(self, bodies: Bodies) -> None:
        self.size = 0
        self._bodies = bodies
        self._pieces: list[bytes] = []
        self._held_bytes = 0

    def keep(self, chunk: bytes) -> None:
        """Keep a piece of it.

        Raises:
            OverloadedError: that makes too much of all bodies; one that is alone is never too much.
        """
        self._pieces.append(chunk)
        self._held_bytes += len(chunk)
        self._bodies.held_bytes += len(chunk)
        if self._held_bytes < self._bodies.held_bytes > self._bodies.max_bytes:
            raise OverloadedError(
                f"requests of {self._bodies.max_bytes} bytes (max_bodies_size) are waiting already, try again later"
            )

    def whole(self) -> bytes:
        """All that was kept."""
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0] if self._pieces else b""

    def let_go(self) -> None:
        """Hold it no longer."""
        self._pieces.clear()
        self._bodies.held_bytes -= self._held_bytes
        self._held_bytes = 0
