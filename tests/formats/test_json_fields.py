"""A field of a large object is found as a parser finds it, a window at a time."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from djl_python.formats.json_fields import UnclearError, find_field
from djl_python.formats.json_windows import WINDOW

TEXTS = st.text('ab,:[]{}"\\\n\u00e9', max_size=60)
NAMES = st.sampled_from(["m", "m", "a", "x\\", '"m"', "é" * 30])
JSON = st.recursive(
    st.none() | st.integers() | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=20
)
FIELDS = st.lists(st.tuples(NAMES, JSON), max_size=8)


def end_of(search: Generator[None, None, bytes | None]) -> tuple[bytes | None, int]:
    """What is found, and in how many windows."""
    steps = 0
    while True:
        try:
            next(search)
        except StopIteration as end:
            return end.value, steps
        steps += 1


@given(FIELDS, st.integers(32 * 5, 32 * 40), st.booleans(), st.booleans())
def test_the_last_field_of_a_name_is_found(
    fields: list[tuple[str, Any]], window: int, spaced: bool, escaped: bool
) -> None:
    """Also where names are in strings and in objects inside, and windows cut any of them."""
    texts = [
        f"{json.dumps(name, ensure_ascii=escaped)}: {json.dumps(value, indent=1 if spaced else None)}"
        for name, value in fields
    ]
    data = (" \n {" + (" ,\n " if spaced else ",").join(texts) + "}\n").encode()
    raw, _ = end_of(find_field(data, "m", window))
    assert (None if raw is None else msgspec.json.decode(raw)) == dict(fields).get("m")
    assert (raw is None) == ("m" not in dict(fields))


def test_a_name_may_be_written_with_escapes() -> None:
    assert end_of(find_field(rb'{"\u006dodel": "a"}', "model"))[0] == b' "a"'


@pytest.mark.parametrize(
    "inside",
    [
        b'"%b"' % (b"a word " * 60_000),
        b'"%b"' % (rb"\" \\" * 80_000),
        b"[%b1]" % (b"12345, " * 60_000),
        b"[%b1]" % (b'{"model": 1}, ' * 30_000),
        b"%b1%b" % (b"[" * 200_000, b"]" * 200_000),
    ],
)
def test_no_step_goes_further_than_a_window(inside: bytes) -> None:
    """Steps through a text, one full of quotes, token ids, many objects, deep ones."""
    data = b'{"messages": %b, "model":"m", "tools": %b}' % (inside, inside)
    raw, steps = end_of(find_field(data, "model"))
    assert raw == b'"m"'
    assert len(data) / WINDOW <= steps < 2 * len(data) / WINDOW + 150


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"  ",
        b'[{"model": "m"}]',
        b'"model"',
        b'\xef\xbb\xbf{"model": "m"}',
        b'{"model": "m"',
        b'{"a": [}',
        b'{"model": "m',
        b'{"model": "%b' % (b"m" * (2 * WINDOW)),
        b'{"model": "%b\\' % (b"m" * (2 * WINDOW)),
        b'{%b"model": "m"}' % (b'"a": 1,' * 100_000),
    ],
)
def test_unclear_beginnings_are_left_to_the_parser(data: bytes) -> None:
    """Nothing of an object, one that does not end, and one of many more fields than a request has."""
    with pytest.raises(UnclearError):
        end_of(find_field(data, "model"))
