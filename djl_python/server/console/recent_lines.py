"""The end of the log, kept for whoever looks. Runs in the front end; `add` in any of its threads."""

from __future__ import annotations

import collections
import itertools
from typing import Final

import msgspec

#: Records that are kept.
KEPT: Final = 1000
#: A longer record is cut off.
MAX_CHARACTERS: Final = 16 << 10


class LogRecord(msgspec.Struct, frozen=True):
    """A record of the log, as it is on stderr: one line, or several."""

    number: int
    text: str


class RecentLines:
    """The last `KEPT` records, numbered from 1 in the order of their arrival."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._kept: collections.deque[LogRecord] = collections.deque(maxlen=KEPT)

    def add(self, text: str) -> None:
        """Keep a record, and drop the oldest one where there are too many."""
        self._kept.append(LogRecord(next(self._numbers), text[:MAX_CHARACTERS]))

    def after(self, number: int) -> list[LogRecord]:
        """The kept records with a higher number; all, if no record has this number yet.

        An earlier server gave such a number.
        """
        kept = tuple(self._kept)
        unknown = bool(kept) and number > kept[-1].number
        return [record for record in kept if unknown or record.number > number]
