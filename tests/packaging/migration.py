"""docs/migration.md as data: each row of its tables, by what can be done with it.

A row has what another server calls it, what it is here, and a note. Cells hold code spans:

- a call: `POST /path` and, where it has one, a JSON object of fields;
- a command: `djl-serving ...`, or `docker run ... djl-serving ...`, where capitals, and `hf://owner/model`, stand for
  what a test makes (DIR, MODELS);
- an import of a `model.py`;
- settings: `key=value`, `NAME=value`; another server's flags are words.

Cells without code say "the same", "no effect", "refused" or "the built-in handler".
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.packaging.documents import DOCS

SAME: Final = "the same"
NO_EFFECT: Final = "no effect"
REFUSED: Final = "refused"
BUILT_IN: Final = "the built-in handler"
WARNED: Final = ", with a warning"
#: As deployment.md builds them.
IMAGES: Final = ("djl-serving", "djl-serving:cuda")
_SPAN: Final = re.compile(r"`([^`]+)`")
_CALL: Final = re.compile(r"(GET|POST|PUT|DELETE) (/\S*)")
_SETTING: Final = re.compile(r"([\w.]+)=(.*)")


@dataclass(frozen=True)
class Call:
    """A request: its method, its path, and the fields that it has beside those that any of its path needs."""

    method: str
    path: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A row, with the text of its first two cells."""

    section: str
    theirs: str
    ours: str

    @property
    def here(self) -> str:
        """The cell that says what it is here: the first one where that is the same."""
        return self.theirs if self.ours == SAME else self.ours

    @property
    def call(self) -> Call | None:
        """What is sent here; None where the row is no call."""
        cell = self.theirs if self.ours in (SAME, NO_EFFECT, REFUSED) else self.ours
        matches = [_CALL.fullmatch(span) for span in spans(cell)[:1]]
        if not matches or matches[0] is None:
            return None
        method, path = matches[0].groups()
        return Call(method, path, json.loads(spans(cell)[1]) if len(spans(cell)) > 1 else {})

    @property
    def command(self) -> list[str]:
        """The words of the command line here, with variables before it; [] where the row is no command."""
        words = shlex.split(spans(self.here)[0]) if spans(self.here) else []
        return words if {"djl-serving", *IMAGES} & {*words} else []

    @property
    def statement(self) -> str:
        """An import, or ""."""
        (first, *_) = spans(self.theirs)
        return first if first.startswith(("from ", "import ")) else ""


def spans(cell: str) -> list[str]:
    """The code of a cell."""
    return _SPAN.findall(cell)


def alternatives(cell: str) -> list[dict[str, str]]:
    """The settings that a cell gives, as many times as it gives them another way ("or")."""
    return [settings(part) for part in cell.split("` or `")]


def settings(cell: str) -> dict[str, str]:
    """The settings of a cell, by key or variable; words of another server are none."""
    matches = (_SETTING.fullmatch(span.strip("` ")) for span in re.split(r"`,? (?:and )?`", cell.partition(WARNED)[0]))
    return {match[1]: match[2] for match in matches if match}


def as_option(words: str) -> dict[str, str]:
    """A flag of vLLM's as the option of its name."""
    flag, _, value = words.partition(" ")
    return {f"option.{flag.removeprefix('--').replace('-', '_')}": value.strip("'") or "true"}


def rows() -> list[Row]:
    """Every row of the document's tables, in order."""
    table_rows: list[Row] = []
    section = ""
    for line in (DOCS / "migration.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## From ")
        if line.startswith("| `"):
            theirs, ours, _ = (cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|"))
            table_rows.append(Row(section, theirs, ours))
    return table_rows
