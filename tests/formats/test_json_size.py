"""How large JSON is: never less than it has, and exactly what it has where that decides."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djl_python.core import budgets
from djl_python.core.errors import ParameterError, TooLargeError
from djl_python.formats.json_size import SchemaSize, refuse_excess, values_in
from tests.work import work

TEXTS = st.text('ab,[]{}"\\\n\u00e9', max_size=8)
JSON = st.recursive(
    st.none() | st.integers() | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=20
)


def values(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(values, inside))


@given(JSON, st.integers(1, 30), st.booleans())
def test_too_many_are_found_and_no_others(value: Any, most: int, spaced: bool) -> None:
    data = json.dumps(value, indent=1 if spaced else None, ensure_ascii=False).encode()
    # Empty brackets count as if they held something.
    empty = sum(data.replace(b" ", b"").replace(b"\n", b"").count(brackets) for brackets in (b"[]", b"{}"))
    count = values_in(data, most)
    assert count >= min(values(value), most + 1)
    if count > most:
        assert values(value) + empty > most


@pytest.mark.parametrize(
    ("data", "most"),
    [
        (b'["' + b",[{" * 100_000 + b'"]', 3),
        (b'["' + b'\\",' * 100_000 + b'", 1]', 3),
        (b'{"a,b": "' + b"\\\\" * 70_001 + b'", "c": ","}', 3),
    ],
)
def test_brackets_and_commas_in_strings_do_not_count(data: bytes, most: int) -> None:
    json.loads(data)
    refuse_excess(data, most)


@pytest.mark.parametrize(
    "data",
    [
        b"[" + b"1," * 4_000_000,
        b"[" + b'",",' * 2_000_000,
        b"{" + b'",":"",' * 1_000_000,
        b"[" * 8_000_000,
        b'"' * 8_000_000,
        b'["' + b'\\"' * 4_000_000,
        b'["' + b"," * 8_000_000,
    ],
)
def test_no_text_takes_more_steps_than_it_has_windows(data: bytes) -> None:
    """Valid or not; and what has too many values is looked at as far as they go."""

    def look() -> None:
        try:
            refuse_excess(data, 10_000)
        except TooLargeError as error:
            message = "the request body: expected at most 10000 JSON values, got at least "
            assert error.message.startswith(message) and int(error.message.removeprefix(message)) < 100_000

    assert work(look) < 30_000


def test_a_short_text_is_not_looked_at() -> None:
    assert work(lambda: refuse_excess(b"[" + b"1," * 100, 1_000)) < 50


LIMITED = {
    "JSON values": [[0] * budgets.SCHEMA_VALUES.most],
    "characters": {"a" * budgets.SCHEMA_CHARS.most: {}},
    "references": {"allOf": [{"$ref": "#"}] * (budgets.SCHEMA_REFERENCES.most + 1)},
    "enum values": {"enum": [0] * (budgets.SCHEMA_ENUM.most + 1)},
    "alternatives": {"anyOf": [{}] * 6_000, "items": {"oneOf": [{}] * 6_000}},
}


@pytest.mark.parametrize("of", LIMITED)
def test_a_schema_has_a_limit_on_its(of: str) -> None:
    with pytest.raises(
        ParameterError, match=rf"^x: expected a JSON schema of at most \d+ {of}, got at least"
    ) as caught:
        SchemaSize().add({"properties": {"a": LIMITED[of]}}, "x")
    assert caught.value.field == "x"


def test_schemas_of_one_request_count_together() -> None:
    size, half = SchemaSize(), {"enum": [0] * (budgets.SCHEMA_ENUM.most // 2)}
    size.add(half, "a")
    size.add(half, "b")
    with pytest.raises(ParameterError, match=r"^c: .* got at least 10001"):
        size.add({"enum": [0]}, "c")
