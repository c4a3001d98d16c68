"""The files and the batches of a server, on disk and in a table, and what bounds them.

Runs in the front end's event loop, and writes in threads. Of each file there are the content, `files/ID`, and what is
known of it, `files/ID.json`; of each batch `batches/ID.json`, and while it is not at its end its journal. Each is
written beside its place and moved there, so that a kill leaves the old or the new. Ids sort by time.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import IO, Final, TypeVar

import msgspec

from ...batch.journal import sync_directory
from ...batch.runner import finished
from ...config import ServerConfig
from ...core.errors import ConfigError, KeptNotFoundError, OverloadedError, TooLargeError
from ...dialects.openai.batches import Batch, FileObject, Purpose
from ...formats.json_framing import encode_json
from .incoming import IncomingFile

T = TypeVar("T", bound=msgspec.Struct)

#: Files of batches are kept this long where nothing else is said, as OpenAI keeps them.
KEPT_S: Final = 30 * 24 * 3600
ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})


class BatchState(msgspec.Struct, frozen=True):
    """A batch as it is kept. Its files get ids when it begins, so that finishing it twice makes the same ones.

    `trace` is the context that spans of its requests are linked with; empty where its server traced nothing.
    """

    batch: Batch
    output_id: str
    error_id: str
    output_kept_s: int = KEPT_S
    trace: dict[str, str] = {}


def new_id(prefix: str) -> str:
    """An id that nothing else has; later ones sort behind it."""
    return f"{prefix}{time.time_ns():016x}{secrets.token_hex(8)}"


class Store:
    """What is in `batch_directory`.

    Attributes:
        max_bytes: of all files at which no further one is taken.

    Raises:
        ConfigError: the directory can't be used, or another server uses it.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._max_files = config.batch_max_files
        self.max_bytes = config.batch_max_bytes
        self._saving = asyncio.Lock()
        self._arriving: set[IncomingFile] = set()
        self._removing: set[asyncio.Future[None]] = set()
        root = Path(config.batch_directory)
        self._files_at, self._batches_at = root / "files", root / "batches"
        try:
            for directory in (self._files_at, self._batches_at):
                directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = _locked(root / "lock")
            self._files = {found.id: found for found in _read(self._files_at, FileObject)}
            self._states = {found.batch.id: found for found in _read(self._batches_at, BatchState)}
            self._remove_leftovers()
        except BlockingIOError:
            raise ConfigError(f"batch_directory={root}: another server uses this directory") from None
        except OSError as exc:
            raise ConfigError(f"batch_directory={root}: {exc}") from exc

    async def close(self) -> None:
        """Break off what arrives, and let another server have the directory."""
        for incoming in self._arriving:
            incoming.abandon()
            await incoming.gone.wait()
        await asyncio.gather(*self._removing, return_exceptions=True)
        self._lock.close()

    # ------------------------------------------------------------------------------------ files

    @property
    def files(self) -> Sequence[FileObject]:
        """The files that are kept, the oldest first."""
        self._forget_expired()
        return list(self._files.values())

    def file(self, file_id: str) -> FileObject:
        """A file.

        Raises:
            KeptNotFoundError: there is none of this id.
        """
        self._forget_expired()
        found = self._files.get(file_id)
        if found is None:
            raise KeptNotFoundError(f"No such File object: {file_id[:200]}", "id")
        return found

    def path(self, file_id: str) -> Path:
        """Where a file's content is, or is to be. Only for ids that were made here."""
        return self._files_at / file_id

    def arrive(self, declared: int) -> IncomingFile:
        """A file that a client begins to send, of so many bytes at least.

        Raises:
            TooLargeError: there are too many files, or too many bytes of them.
        """
        self._forget_expired()
        if len(self._files) + len(self._still_arriving()) >= self._max_files:
            raise TooLargeError(f"{self._max_files} files (batch_max_files) are kept already: delete some first")
        self._check_room(declared)
        incoming = IncomingFile(self._files_at, lambda: self._check_room(0))
        self._arriving.add(incoming)
        return incoming

    async def add(self, incoming: IncomingFile, filename: str, kept_s: int = KEPT_S) -> FileObject:
        """Keep a file that has arrived.

        Raises:
            TooLargeError: there are too many bytes of files.
            UnavailableError: the server ends.
            OSError: it can't be written.
        """
        file_id = new_id("file-")
        await incoming.move_to(self.path(file_id))
        try:
            return await self.know(file_id, filename, "batch", kept_s)
        except OSError:
            self.path(file_id).unlink(missing_ok=True)
            raise

    @property
    def held_bytes(self) -> int:
        """Bytes of all files, those that arrive included."""
        kept = sum(file.bytes for file in self._files.values())
        return kept + sum(one.size for one in self._still_arriving())

    def _still_arriving(self) -> Collection[IncomingFile]:
        self._arriving = {one for one in self._arriving if not one.gone.is_set()}
        return [one for one in self._arriving if not one.abandoned]

    def _check_room(self, more: int) -> None:
        if (held := self.held_bytes) + more > self.max_bytes:
            raise TooLargeError(
                f"there is no room for this file: all together may have {self.max_bytes} bytes (batch_max_bytes), and "
                f"have {held}: delete some first"
            )

    async def know(self, file_id: str, filename: str, purpose: Purpose, kept_s: int) -> FileObject:
        """Keep a file whose content is there."""
        now = int(time.time())
        path = self.path(file_id)
        made = FileObject(
            id=file_id,
            bytes=path.stat().st_size,
            created_at=now,
            expires_at=now + kept_s,
            filename=filename,
            purpose=purpose,
        )
        await finished(asyncio.to_thread(_replace, path.with_name(f"{file_id}.json"), encode_json(made)))
        self._files[file_id] = made
        return made

    def delete(self, file_id: str) -> asyncio.Future[None]:
        """Keep a file no longer, which is there. What is returned is done when the disk has it no longer either."""
        del self._files[file_id]
        removing = asyncio.ensure_future(asyncio.to_thread(_remove, self.path(file_id)))
        self._removing.add(removing)
        removing.add_done_callback(self._removing.discard)
        return removing

    # ------------------------------------------------------------------------------------ batches

    @property
    def states(self) -> Sequence[BatchState]:
        """The batches, the oldest first."""
        return list(self._states.values())

    def state(self, batch_id: str) -> BatchState:
        """A batch.

        Raises:
            KeptNotFoundError: there is none of this id.
        """
        found = self._states.get(batch_id)
        if found is None:
            raise KeptNotFoundError(f"No batch found with id '{batch_id[:200]}'.", "batch_id")
        return found

    def journal(self, batch_id: str) -> Path:
        """Where a batch's journal is."""
        return self._batches_at / f"{batch_id}.journal"

    async def save(self, state: BatchState) -> None:
        """Keep a batch, new or changed. Of those that have ended, the oldest give way to a new one.

        Raises:
            OverloadedError: too many have not ended.
            OSError: it can't be written; then a new one is not kept, and of a changed one the disk has the old state.
        """
        is_new = state.batch.id not in self._states
        if is_new and len(self._states) >= self._max_files:
            ended = next((one for one in self._states.values() if one.batch.status in ENDED), None)
            if ended is None:
                raise OverloadedError(f"{self._max_files} batches (batch_max_files) have not ended, try again later")
            del self._states[ended.batch.id]
            (self._batches_at / f"{ended.batch.id}.json").unlink(missing_ok=True)
        self._states[state.batch.id] = state
        async with self._saving:  # one after the other, and each what is newest
            newest = encode_json(self._states[state.batch.id])
            try:
                await finished(asyncio.to_thread(_replace, self._batches_at / f"{state.batch.id}.json", newest))
            except OSError:
                if is_new:
                    del self._states[state.batch.id]
                raise

    def update(self, state: BatchState) -> None:
        """Change what is told of a batch, but not what is kept of it."""
        self._states[state.batch.id] = state

    # ------------------------------------------------------------------------------------ inside

    def _forget_expired(self) -> None:
        now, needed = time.time(), self.needed
        for file in list(self._files.values()):
            if file.expires_at is not None and file.expires_at < now and file.id not in needed:
                self.delete(file.id)

    @property
    def needed(self) -> dict[str, str]:
        """The files that batches still read, each with the batch."""
        unended = (one.batch for one in self._states.values() if one.batch.status not in ENDED)
        return {batch.input_file_id: batch.id for batch in unended}

    def _remove_leftovers(self) -> None:
        """Remove what a kill has left: files that were not complete, or of which nothing is known."""
        for path in self._files_at.iterdir():
            if path.suffix != ".json" and path.name not in self._files:
                path.unlink()
        for path in self._batches_at.iterdir():
            state = self._states.get(path.stem)
            if path.suffix == ".tmp" or state is None or (path.suffix == ".journal" and state.batch.status in ENDED):
                path.unlink()


def _locked(path: Path) -> IO[str]:
    """A file that this process alone has open."""
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file


def _read(directory: Path, kind: type[T]) -> Iterator[T]:
    for path in sorted(directory.glob("*.json")):
        try:
            yield msgspec.json.decode(path.read_bytes(), type=kind)
        except msgspec.MsgspecError as exc:
            raise ConfigError(f"batch_directory: {path} can't be read: {exc}") from exc


def _remove(path: Path) -> None:
    """Remove a file and what is known of it. Of a large one, it takes a while."""
    path.with_name(f"{path.name}.json").unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _replace(path: Path, content: bytes) -> None:
    """Write a file so that the old content or the new is there, whatever happens."""
    beside = path.with_name(f"{path.name}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    sync_directory(path.parent)
