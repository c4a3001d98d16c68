"""A file that arrives: written as it comes, and added to the store's files once it is complete.

Runs in the front end's event loop, and writes in threads.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from ...batch.journal import sync_directory
from ...core.errors import UnavailableError

#: How many bytes are written at a time. Memory holds at most this and one piece of a file.
BLOCK_BYTES: Final = 1 << 20


class IncomingFile:
    """One file, until it is kept or abandoned.

    Args:
        directory: where it is written.
        owner: the name of the API key whose it is.
        check_room: called before each write; raises an error if there is no room.

    Attributes:
        owner: as given.
        size: bytes that have come so far.
        abandoned: whether it takes nothing more, and its content is deleted.
        gone: set once it has been kept or deleted.
    """

    def __init__(self, directory: Path, owner: str, check_room: Callable[[], None]) -> None:
        self.size = 0
        self.owner = owner
        self.gone = asyncio.Event()
        self._path = directory / f"{secrets.token_hex(16)}.tmp"
        self._check_room = check_room
        self._file: BinaryIO | None = None
        self._pieces: list[bytes] = []
        self._unwritten_bytes = 0
        self._writing: asyncio.Future[None] | None = None
        self.abandoned = self._moving = False

    async def write(self, piece: bytes) -> None:
        """Append a piece.

        Raises:
            TooLargeError: there is no room for it.
            UnavailableError: it has been abandoned, as the server ends.
            OSError: it can't be written.
        """
        if self.abandoned:
            raise UnavailableError("the server is shutting down")
        self.size += len(piece)
        self._pieces.append(piece)
        self._unwritten_bytes += len(piece)
        if self._unwritten_bytes >= BLOCK_BYTES:
            self._check_room()
            await self._in_thread(self.append)

    async def move_to(self, path: Path) -> None:
        """It is complete: move it to its place, on the disk for good. Raises what `write` raises."""
        if self.abandoned:
            raise UnavailableError("the server is shutting down")
        self._check_room()
        self._moving = True
        try:
            await self._in_thread(lambda: self.publish(path))
        finally:
            self._moving = False
        self.gone.set()

    def abandon(self) -> None:
        """Delete it. Ignored while it is moved to its place, and afterwards."""
        if not (self.abandoned or self._moving or self.gone.is_set()):
            self.abandoned = True
            removing = asyncio.ensure_future(self._removed())
            removing.add_done_callback(lambda _: self.gone.set())

    async def _in_thread(self, work: Callable[[], None]) -> None:
        self._writing = asyncio.ensure_future(asyncio.to_thread(work))
        await asyncio.shield(self._writing)

    async def _removed(self) -> None:
        if self._writing is not None:  # a thread can't be interrupted
            await asyncio.wait([self._writing])
        self._pieces.clear()
        await asyncio.to_thread(self._remove)

    # ------------------------------------------------------------------------------------ in threads

    def append(self) -> None:
        """Write the pieces that have come since the last call."""
        pieces, self._pieces, self._unwritten_bytes = self._pieces, [], 0
        if self._file is None:
            self._file = self._path.open("wb", buffering=0)
        for piece in pieces:
            left = memoryview(piece)
            while left:
                left = left[self._file.write(left) :]

    def publish(self, path: Path) -> None:
        """Write the rest, and move the file to its place."""
        self.append()
        assert self._file is not None
        os.fsync(self._file.fileno())
        self._file.close()
        self._path.replace(path)
        sync_directory(path.parent)

    def _remove(self) -> None:
        if self._file is not None:
            self._file.close()
        self._path.unlink(missing_ok=True)
