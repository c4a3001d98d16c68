"""How large JSON is, found out before work is done on it: values of a text, and the parts of a schema.

Used in the worker, and in the front end for bodies that name a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from ..core import budgets
from ..core.budgets import Budget
from ..core.errors import ParameterError, TooLargeError
from .json_windows import STRING, WINDOW, whole_part

_COMBINING: Final = ("anyOf", "oneOf", "allOf")


def refuse_excess(data: bytes, most: int, what: str = "the request body") -> None:
    """Refuse a JSON text with more than `most` values. A text too short to hold as many is not read.

    Raises:
        TooLargeError: names `what`, the limit, and how many there are at least.
    """
    if len(data) >= 2 * most and (got := values_in(data, most)) > most:
        raise TooLargeError(f"{what}: {budgets.VALUES._replace(most=most).excess(got, at_least=True)}")


def values_in(data: bytes, most: int) -> int:
    """How many values a JSON text has: an upper bound while that is at most `most`; else counting stops behind it.

    Each value but the first one of all stands behind a comma, or is the first in brackets. Text in strings has commas
    and brackets, too: it is left out only if there would be too many values with it.
    """
    count = 1
    for at in range(0, len(data), WINDOW):
        count += _separators(data[at : at + WINDOW])
        if count > most:
            return _values_without_strings(data, most)
    return count


def _values_without_strings(data: bytes, most: int) -> int:
    count, at = 1, 0
    while at < len(data) and count <= most:
        if whole := whole_part(data, at):
            count += _separators(STRING.sub(b"", whole))
            at += len(whole)
        else:  # a string that is longer than a window
            string = STRING.match(data, at)
            at = len(data) if string is None else string.end()
    return count


def _separators(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")


class SchemaSize(msgspec.Struct):
    """What the schemas of one request have together. Each is counted before it is read."""

    values: int = 0
    chars: int = 0
    references: int = 0
    enum: int = 0
    alternatives: int = 0

    def add(self, schema: Mapping[str, Any], field: str) -> None:
        """Count a schema, level by level.

        Raises:
            ParameterError: a limit is exceeded, or it is nested too deeply; names `field`.
        """
        level: list[Any] = [schema]
        depth = 0
        while level:
            depth += 1
            if depth > budgets.SCHEMA_DEPTH.most:
                raise ParameterError(_expected(field, budgets.SCHEMA_DEPTH), field)
            inside: list[Any] = []
            for container in level:
                inside += self._items(container, field)
            level = inside

    def _items(self, container: Any, field: str) -> Iterable[Any]:
        """Count what is directly in an object or array; the objects and arrays in it."""
        self.values += len(container)
        if isinstance(container, Mapping):
            self.chars += sum(map(len, container))
            self.references += isinstance(container.get("$ref"), str)
            self.enum += _length(container.get("enum"))
            self.alternatives += sum(_length(container.get(keyword)) for keyword in _COMBINING)
            container = container.values()
        self.chars += sum(len(item) for item in container if isinstance(item, str))
        for budget, got in (
            (budgets.SCHEMA_VALUES, self.values),
            (budgets.SCHEMA_CHARS, self.chars),
            (budgets.SCHEMA_REFERENCES, self.references),
            (budgets.SCHEMA_ENUM, self.enum),
            (budgets.SCHEMA_ALTERNATIVES, self.alternatives),
        ):
            if got > budget.most:
                raise ParameterError(f"{_expected(field, budget)}, got at least {got}", field)
        return (item for item in container if isinstance(item, Mapping | list))


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


def _expected(field: str, budget: Budget) -> str:
    return f"{field}: expected a JSON schema of at most {budget.most} {budget.of}"
