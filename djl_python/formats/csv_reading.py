"""CSV bodies, read.

Runs in the worker.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from ..core.errors import DecodeError

_NO_LIMIT: Final = 2**31 - 1


def allow_long_cells() -> None:
    """Lift the csv module's limit of 131,072 characters a cell: how long a body may be is limited elsewhere.

    The limit is the process's, the user's code included. A process that is ours does this once, when it begins;
    reading does not change it, so that a limit set by user code stays.
    """
    csv.field_size_limit(_NO_LIMIT)


def read_rows(text: str) -> list[list[str]]:
    """The lines' cells, without empty lines.

    Raises:
        DecodeError: not CSV.
    """
    with _refusing():
        return [row for row in csv.reader(_lines(text)) if row]


def read_dicts(text: str, rename: Callable[[str], str] = str) -> tuple[list[str], list[dict[str, Any]]]:
    """The names in the header line, each as `rename` has it, and a dict for each line after it.

    As csv.DictReader has them: what a line has beyond the header's names is a list under None, what it lacks is None.

    Raises:
        DecodeError: not CSV.
    """
    with _refusing():
        reader = csv.DictReader(_lines(text))
        names = reader.fieldnames = [rename(name) for name in reader.fieldnames or ()]
        return names, list(reader)


def _lines(text: str) -> io.StringIO:
    text = text.removeprefix("\ufeff")  # spreadsheets mark their UTF-8 by it; it is no part of the first name
    return io.StringIO(text, newline="")  # a line may end as it likes, and has what a quoted cell has


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except csv.Error as exc:
        raise DecodeError(f"CSV: {exc}") from exc
