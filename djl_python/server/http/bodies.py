"""Request bodies in the front end's memory: from their arrival until a worker has the call.

Runs in the front end's event loop.
"""

from __future__ import annotations

from ...core.errors import OverloadedError


class Bodies:
    """Bytes held of all bodies together, and their limit."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0


class Body:
    """One request's body.

    Attributes:
        size: bytes that have arrived, kept or not.
    """

    def __init__(self, bodies: Bodies) -> None:
        self.size = 0
        self._bodies = bodies
        self._pieces: list[bytes] = []
        self._held_bytes = 0

    def keep(self, chunk: bytes) -> None:
        """Keep a piece of the body.

        Raises:
            OverloadedError: all bodies together exceed the limit. A body that is held alone is never refused.
        """
        self._pieces.append(chunk)
        self._held_bytes += len(chunk)
        self._bodies.held_bytes += len(chunk)
        if self._held_bytes < self._bodies.held_bytes > self._bodies.max_bytes:
            raise OverloadedError(
                f"requests of {self._bodies.max_bytes} bytes (max_bodies_size) are waiting already, try again later"
            )

    def whole(self) -> bytes:
        """All kept pieces, joined."""
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0] if self._pieces else b""

    def let_go(self) -> None:
        """Release all kept pieces."""
        self._pieces.clear()
        self._bodies.held_bytes -= self._held_bytes
        self._held_bytes = 0
