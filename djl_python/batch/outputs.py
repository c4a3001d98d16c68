"""The output file and the error file of a batch, in the input's order, made of its journal. Blocking.

Each appears complete or not at all: it is written beside its place, and moved there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from ..formats.json_framing import encode_json
from .journal import Journal, sync_directory
from .lines import InputFile
from .results import unanswered
from .turns import Turns

#: The cost of a line in addition to its bytes, in bytes: without a result, its request is read.
_LINE_BYTES: Final = 1 << 10


@dataclass(frozen=True)
class Gap:
    """The error of requests without a result: OpenAI's code, and a sentence."""

    code: str
    message: str


def write_outputs(journal: Journal, output: Path, errors: Path, source: InputFile, gap: Gap | None = None) -> int:
    """Write both files; one without lines is not made. Returns how many lines the error file has.

    Args:
        gap: for requests without a result; None: there are none.

    Raises:
        OSError: they can't be written; then neither is there, or only the error file.
    """
    failed = 0
    with ExitStack() as stack:
        sink = {False: _Sink(output, stack), True: _Sink(errors, stack)}
        turns = Turns()
        for is_failed, line in _lines(journal, source, gap):
            turns.worked(_LINE_BYTES + len(line))
            failed += is_failed
            sink[is_failed].write(line)
        for file in (sink[True], sink[False]):
            file.publish()
    return failed


def _lines(journal: Journal, source: InputFile, gap: Gap | None) -> Iterator[tuple[bool, bytes]]:
    """(whether it is an error, the line) of each request, in order."""
    records = journal.records()
    with source.path.open("rb") as file:
        for index in range(source.count):
            if journal.is_done(index):
                record = next(records)
                yield record.failed, bytes(record.result)
            elif gap is not None:
                ((_, request),) = source.requests([index], file)
                yield True, encode_json(unanswered(request.custom_id, gap.code, gap.message))


class _Sink:
    """One of the files, while it is written."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        self._beside = path.with_name(f"{path.name}.tmp")
        self._stack = stack
        self._file: BinaryIO | None = None

    def write(self, line: bytes) -> None:
        if self._file is None:
            self._stack.callback(self._beside.unlink, missing_ok=True)  # where a full disk has ended it
            self._file = self._stack.enter_context(self._beside.open("wb"))
        self._file.write(line + b"\n")

    def publish(self) -> None:
        if self._file is None:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._beside.replace(self._path)
        sync_directory(self._path.parent)
