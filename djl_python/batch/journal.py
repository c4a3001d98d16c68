"""The journal of a batch: a file to which each result is appended, and from which the batch goes on.

A journal is JSON lines: a head that identifies the input, then a record for each request with a result, in the order in
    which they ended. A request is done when its record is complete. When the journal is opened again, anything after
    the last complete record (left by a kill, a full disk or a power cut) is cut off, and those requests are answered
    again. So no request is lost, and none has two results.

Blocking: event loops call it in a thread. One process at a time has a journal (a lock on the file).
"""

from __future__ import annotations

import fcntl
import os
import time
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from ..formats.json_framing import encode_json
from .results import ResultLine, TokenTotals, usage_of
from .turns import Turns

VERSION: Final = 1
#: Longest time that a result is in the kernel's memory only, where it survives a kill, but no power cut.
SYNC_EVERY_S: Final = 1.0


class JournalError(Exception):
    """A journal can't be used; the message says what to do."""


class JournalHead(msgspec.Struct, frozen=True):
    """The first line, which identifies the input. `target` is the answering server or model, for people."""

    input_sha256: str
    count: int
    target: str = ""
    journal: int = VERSION


class JournalRecord(msgspec.Struct, frozen=True):
    """One request's result. `index` is 0 for the input's first request."""

    index: int
    failed: bool
    result: msgspec.Raw

    @classmethod
    def of(cls, index: int, result: ResultLine, *, failed: bool) -> JournalRecord:
        """The record of a result."""
        return cls(index, failed, msgspec.Raw(encode_json(result)))


class _Answer(msgspec.Struct):
    body: msgspec.Raw


class _Result(msgspec.Struct):
    """The part of a result that has its tokens."""

    response: _Answer | None = None


class Journal:
    """An open journal; a context manager that closes it.

    Attributes:
        head: its first line.
        done: how many requests have their result; `failed`: how many of them are errors.
        usage: the tokens of all results.
        dropped_bytes: size of the incomplete end that was cut off when it was opened.
    """

    def __init__(self, path: Path, file: BinaryIO, head: JournalHead) -> None:
        self.head = head
        self.done = self.failed = self.dropped_bytes = 0
        self.usage = TokenTotals()
        self._path = path
        self._file = file
        self._places = array("q", [-1]) * head.count  # where each request's record begins, in bytes
        self._synced_s = time.monotonic()

    @classmethod
    def open(cls, path: Path, head: JournalHead) -> Journal:
        """Open the journal at `path`, or begin one.

        Raises:
            JournalError: the journal belongs to another input or is in use, or the file is no journal.
            OSError: the file can't be read or written.
        """
        file = path.open("a+b")
        try:
            _lock(file, path)
            file.seek(0)
            first = file.readline()
            if not first.endswith(b"\n"):  # empty, or cut off before it was begun
                file.truncate(0)
                write(file, encode_json(head) + b"\n")
                os.fsync(file.fileno())
                sync_directory(path.parent)
                return cls(path, file, head)
            journal = cls(path, file, _checked(first, head, path))
            journal._read(len(first))
        except BaseException:
            file.close()
            raise
        return journal

    def is_done(self, index: int) -> bool:
        """Whether this request has its result."""
        return self._places[index] >= 0

    def pending(self) -> list[int]:
        """The requests that have none, in order."""
        return [index for index, place in enumerate(self._places) if place < 0]

    def append(self, records: Sequence[JournalRecord]) -> None:
        """Append the results of requests that have none yet.

        Raises:
            OSError: they can't be written. Nothing is lost but these: the journal can be opened again.
        """
        at = self._file.seek(0, os.SEEK_END)
        lines = [encode_json(record) + b"\n" for record in records]
        try:
            write(self._file, b"".join(lines))
        except OSError:
            self._file.truncate(at)
            raise
        for record, line in zip(records, lines, strict=True):
            self._count(record, at)
            at += len(line)
        if time.monotonic() - self._synced_s >= SYNC_EVERY_S:
            self.sync()

    def sync(self) -> None:
        """Wait until the disk has everything."""
        os.fsync(self._file.fileno())
        self._synced_s = time.monotonic()

    def records(self) -> Iterator[JournalRecord]:
        """All records, in the input's order."""
        with self._path.open("rb") as file:
            for place in self._places:
                if place >= 0:
                    file.seek(place)
                    yield msgspec.json.decode(file.readline(), type=JournalRecord)

    def close(self) -> None:
        """Wait for the disk, and let go of the file; may be called again."""
        if not self._file.closed:
            self.sync()
            self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def remove(self) -> None:
        """Remove a journal's file, after its results have been written."""
        self._path.unlink()
        self._file.close()

    def _read(self, at: int) -> None:
        """Read the records after the head, up to the last complete one; cut off the rest."""
        turns = Turns()
        for line in self._file:
            turns.worked(len(line))
            record = _complete(line, self.head.count)
            if record is None or self.is_done(record.index):
                break
            self._count(record, at)
            at += len(line)
        self.dropped_bytes = self._file.seek(0, os.SEEK_END) - at
        if self.dropped_bytes:
            self._file.truncate(at)
            self.sync()

    def _count(self, record: JournalRecord, place: int) -> None:
        self._places[record.index] = place
        self.done += 1
        self.failed += record.failed
        response = msgspec.json.decode(record.result, type=_Result).response
        if response is not None:
            self.usage.add(usage_of(response.body))


def _lock(file: BinaryIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise JournalError(f"{path}: another process is working on this batch") from None


def _checked(first: bytes, wanted: JournalHead, path: Path) -> JournalHead:
    """The head that a journal has, which has to be of the same input."""
    try:
        head = msgspec.json.decode(first, type=JournalHead)
    except msgspec.MsgspecError:
        raise JournalError(f"{path}: this is not the journal of a batch; remove it, or choose another output") from None
    if head.journal != VERSION:
        raise JournalError(f"{path}: it was written by another version of this program; finish it with that one")
    if (head.input_sha256, head.count) != (wanted.input_sha256, wanted.count):
        raise JournalError(
            f"{path}: these are results of another input (of {head.count} requests, SHA-256 {head.input_sha256[:12]}"
            f"...; this one has {wanted.count}, {wanted.input_sha256[:12]}...)"
        )
    return head


def _complete(line: bytes, count: int) -> JournalRecord | None:
    """The record of a line; None: it is not complete."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = msgspec.json.decode(line, type=JournalRecord)
        msgspec.json.decode(record.result, type=_Result)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return record if 0 <= record.index < count else None


def write(file: BinaryIO, data: bytes) -> None:
    """Write past the file's buffer: data that a full disk refuses now must not be written later, when it is closed."""
    left = memoryview(data)
    while left:
        left = left[os.write(file.fileno(), left) :]


def sync_directory(path: Path) -> None:
    """Wait until the disk knows the files of a directory by their names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
