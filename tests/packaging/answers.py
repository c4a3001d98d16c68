"""What documents print of an answer, held against the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest


def same(actual: Any, expected: Any) -> bool:
    """Equal, but for `...` and the last digits of numbers, which depend on the processor.

    `...` stands for the end of a text, or, as a key, for what else an object has.
    """
    if isinstance(expected, dict):
        keys = [key for key in expected if key != "..."]
        if len(keys) == len(expected) and list(actual) != keys:
            return False
        return all(key in actual and same(actual[key], expected[key]) for key in keys)
    if isinstance(expected, list):
        return isinstance(actual, list) and len(actual) == len(expected) and all(map(same, actual, expected))
    if isinstance(expected, str) and expected.endswith("..."):
        return str(actual).startswith(expected.removesuffix("..."))
    return bool(actual == pytest.approx(expected, abs=1e-3) if isinstance(expected, float) else actual == expected)


def documents(text: str) -> list[Any]:
    """One JSON document, or one a line; that of a server-sent event in {"data": ...}; a line that is none as it is."""
    try:
        return [json.loads(text)]
    except ValueError:
        return [_line(line) for line in text.splitlines() if line.strip()]


def _line(line: str) -> Any:
    event = line.removeprefix("data: ")
    try:
        return json.loads(line) if event == line else {"data": json.loads(event)}
    except ValueError:
        return line
