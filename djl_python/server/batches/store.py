"""The files and the batches of a server, on disk and in a table, and their limits.

Runs in the front end's event loop, and writes in threads. A file has its content, `files/ID`, and its description,
`files/ID.json`. A batch has `batches/ID.json`, and a journal until it ends. Each is written to a temporary file and
renamed, so that a kill leaves the old or the new. Ids sort by time.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from ...batch.runner import finished
from ...config import ServerConfig
from ...core.access.api_key import ANYONE, ApiKey
from ...core.access.shares import fits, givers, rule
from ...core.errors import ConfigError, KeptNotFoundError, OverloadedError, TooLargeError
from ...core.turns.precedence import ANY, Precedence
from ...dialects.shared.batches import Batch, FileObject, Purpose
from ...formats.json_framing import encode_json
from ..disk import locked, replace_file
from .incoming import IncomingFile

T = TypeVar("T", bound=msgspec.Struct)

#: How long files of batches are kept by default, as by OpenAI.
KEPT_S: Final = 30 * 24 * 3600
ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})


class KeptFile(FileObject, frozen=True, kw_only=True):
    """A file as it is kept. `owner` is the name of the API key that made it; "" without keys."""

    owner: str = ""

    @property
    def shown(self) -> FileObject:
        """The file as clients see it."""
        return FileObject(**{name: getattr(self, name) for name in FileObject.__struct_fields__})


class BatchState(msgspec.Struct, frozen=True):
    """A batch as it is kept. Its files get ids when it begins, so that finishing it twice makes the same ones.

    `trace` is the context to which spans of its requests link; empty without traces. `owner` is the name of the API key
    that made it, and `models` are those that this key may use (none: all). `precedence` has the tenant of its requests.
    """

    batch: Batch
    output_id: str
    error_id: str
    output_kept_s: int = KEPT_S
    trace: dict[str, str] = {}
    owner: str = ""
    models: tuple[str, ...] = ()
    precedence: Precedence = ANY


def new_id(prefix: str) -> str:
    """A unique id; later ids sort after it."""
    return f"{prefix}{time.time_ns():016x}{secrets.token_hex(8)}"


class Store:
    """The files and batches in `batch_directory`.

    Attributes:
        max_bytes: total size of all files at which no further one is taken.

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
            self._lock = locked(root / "lock")
            self._files = {kept.id: kept for kept in _read(self._files_at, KeptFile)}
            self._states = {state.batch.id: state for state in _read(self._batches_at, BatchState)}
            self._remove_leftovers()
        except BlockingIOError:
            raise ConfigError(f"batch_directory={root}: another server uses this directory") from None
        except OSError as exc:
            raise ConfigError(f"batch_directory={root}: {exc}") from exc

    async def close(self) -> None:
        """Abort uploads, and release the directory for another server."""
        for incoming in self._arriving:
            incoming.abandon()
            await incoming.gone.wait()
        await asyncio.gather(*self._removing, return_exceptions=True)
        self._lock.close()

    # ------------------------------------------------------------------------------------ files

    def files(self, key: ApiKey = ANYONE) -> Sequence[FileObject]:
        """The files that a key may see, the oldest first."""
        self._forget_expired()
        return [file.shown for file in self._files.values() if key.sees(file.owner)]

    def file(self, file_id: str, key: ApiKey = ANYONE) -> FileObject:
        """A file.

        Raises:
            KeptNotFoundError: there is none of this id that the key may see.
        """
        self._forget_expired()
        kept = self._files.get(file_id)
        if kept is None or not key.sees(kept.owner):
            raise KeptNotFoundError(f"No such File object: {file_id[:200]}", "id")
        return kept.shown

    def path(self, file_id: str) -> Path:
        """The path of a file's content. Only for ids that were made here."""
        return self._files_at / file_id

    def arrive(self, declared: int, owner: str = "") -> IncomingFile:
        """A file that the client of a key begins to send, of so many bytes at least.

        Raises:
            TooLargeError: there are too many files, or too many bytes of them.
        """
        self._forget_expired()
        owners = [file.owner for file in self._files.values()]
        owners += [upload.owner for upload in self._still_arriving()]
        if not fits(owner, own := owners.count(owner), len(owners), self._max_files):
            raise TooLargeError(
                f"{len(owners)} files are kept already, {own} of them yours, and there may be {self._max_files} "
                f"(batch_max_files{rule(owner)}): delete some first"
            )
        self._check_room(owner, declared)
        incoming = IncomingFile(self._files_at, owner, lambda: self._check_room(owner, 0))
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
            return await self.register_file(file_id, filename, "batch", kept_s, incoming.owner)
        except OSError:
            self.path(file_id).unlink(missing_ok=True)
            raise

    @property
    def held_bytes(self) -> int:
        """Bytes of all files, those that arrive included."""
        return self._bytes_of_owners().total()

    def _bytes_of_owners(self) -> Counter[str]:
        held = Counter[str]()
        for file in self._files.values():
            held[file.owner] += file.bytes
        for upload in self._still_arriving():
            held[upload.owner] += upload.size
        return held

    def _still_arriving(self) -> Collection[IncomingFile]:
        self._arriving = {upload for upload in self._arriving if not upload.gone.is_set()}
        return [upload for upload in self._arriving if not upload.abandoned]

    def _check_room(self, owner: str, more: int) -> None:
        held = self._bytes_of_owners()
        if not fits(owner, held[owner], held.total(), self.max_bytes, more):
            raise TooLargeError(
                f"there is no room for this file: all together may have {self.max_bytes} bytes (batch_max_bytes"
                f"{rule(owner)}), and have {held.total()}, {held[owner]} of them yours: delete some first"
            )

    async def register_file(
        self, file_id: str, filename: str, purpose: Purpose, kept_s: int, owner: str = ""
    ) -> FileObject:
        """Keep a file whose content is in its place already."""
        now = int(time.time())
        path = self.path(file_id)
        made = KeptFile(
            id=file_id,
            bytes=path.stat().st_size,
            created_at=now,
            expires_at=now + kept_s,
            filename=filename,
            purpose=purpose,
            owner=owner,
        )
        await finished(asyncio.to_thread(replace_file, path.with_name(f"{file_id}.json"), encode_json(made)))
        self._files[file_id] = made
        return made.shown

    def delete(self, file_id: str) -> asyncio.Future[None]:
        """Forget an existing file at once; the returned future is done when it has left the disk too."""
        del self._files[file_id]
        removing = asyncio.ensure_future(asyncio.to_thread(_remove, self.path(file_id)))
        self._removing.add(removing)
        removing.add_done_callback(self._removing.discard)
        return removing

    # ------------------------------------------------------------------------------------ batches

    def states(self, key: ApiKey = ANYONE) -> Sequence[BatchState]:
        """The batches that a key may see, the oldest first."""
        return [state for state in self._states.values() if key.sees(state.owner)]

    def state(self, batch_id: str, key: ApiKey = ANYONE) -> BatchState:
        """A batch.

        Raises:
            KeptNotFoundError: there is none of this id that the key may see.
        """
        state = self._states.get(batch_id)
        if state is None or not key.sees(state.owner):
            raise KeptNotFoundError(f"No batch found with id '{batch_id[:200]}'.", "batch_id")
        return state

    def journal(self, batch_id: str) -> Path:
        """Where a batch's journal is."""
        return self._batches_at / f"{batch_id}.journal"

    async def save(self, state: BatchState) -> None:
        """Keep a batch, new or changed. A new one replaces an old one that has ended, where there are too many: the
        oldest of the key that has the most.

        Raises:
            OverloadedError: too many have not ended.
            OSError: it can't be written: a new batch is not kept, and the disk has a changed one's old state.
        """
        is_new = state.batch.id not in self._states
        if is_new:
            self._make_room(state.owner)
        self._states[state.batch.id] = state
        async with self._saving:  # in order, and each writes the newest state
            newest = encode_json(self._states[state.batch.id])
            try:
                await finished(asyncio.to_thread(replace_file, self._batches_at / f"{state.batch.id}.json", newest))
            except OSError:
                if is_new:
                    del self._states[state.batch.id]
                raise

    def update(self, state: BatchState) -> None:
        """Change a batch in memory, but not on the disk."""
        self._states[state.batch.id] = state

    # ------------------------------------------------------------------------------------ inside

    def _make_room(self, owner: str) -> None:
        """Make room for another batch of an owner's."""
        unended = [state.owner for state in self._states.values() if state.batch.status not in ENDED]
        amounts = Counter(state.owner for state in self._states.values())
        if fits(owner, unended.count(owner), len(unended), self._max_files):
            if len(self._states) < self._max_files:
                return
            for giver in givers(amounts, owner, amounts[owner] + 1):
                if ended := self._oldest_ended(giver):
                    del self._states[ended]
                    (self._batches_at / f"{ended}.json").unlink(missing_ok=True)
                    return
            raise OverloadedError(
                f"{len(self._states)} batches are kept (batch_max_files: {self._max_files}), {amounts[owner]} of them "
                "yours; none of yours has ended, and other keys keep no more than you: try again later"
            )
        raise OverloadedError(
            f"{len(unended)} batches have not ended, {unended.count(owner)} of them yours, and there may be "
            f"{self._max_files} (batch_max_files{rule(owner)}): try again later"
        )

    def _oldest_ended(self, owner: str) -> str | None:
        """The id of an owner's oldest batch that has ended."""
        states = (state for state in self._states.values() if state.owner == owner)
        return next((state.batch.id for state in states if state.batch.status in ENDED), None)

    def _forget_expired(self) -> None:
        now, needed = time.time(), self.needed
        for file in list(self._files.values()):
            if file.expires_at is not None and file.expires_at < now and file.id not in needed:
                self.delete(file.id)

    @property
    def needed(self) -> dict[str, str]:
        """The input files of unfinished batches, each with its batch."""
        unended = (state.batch for state in self._states.values() if state.batch.status not in ENDED)
        return {batch.input_file_id: batch.id for batch in unended}

    def _remove_leftovers(self) -> None:
        """Remove leftovers of a kill: incomplete files, and files without a description."""
        for path in self._files_at.iterdir():
            if path.suffix != ".json" and path.name not in self._files:
                path.unlink()
        for path in self._batches_at.iterdir():
            state = self._states.get(path.stem)
            if path.suffix == ".tmp" or state is None or (path.suffix == ".journal" and state.batch.status in ENDED):
                path.unlink()


def _read(directory: Path, kind: type[T]) -> Iterator[T]:
    for path in sorted(directory.glob("*.json")):
        try:
            yield msgspec.json.decode(path.read_bytes(), type=kind)
        except msgspec.MsgspecError as exc:
            raise ConfigError(f"batch_directory: {path} can't be read: {exc}") from exc


def _remove(path: Path) -> None:
    """Remove a file and its description. A large file takes a while."""
    path.with_name(f"{path.name}.json").unlink(missing_ok=True)
    path.unlink(missing_ok=True)
