from __future__ import annotations

import csv
from collections.abc import Iterator

import pytest

from djl_python.core.errors import PayloadError
from djl_python.formats.csv_reading import allow_long_cells, read_dicts, read_rows

LONG = "a" * 140_000


@pytest.fixture
def limit() -> Iterator[int]:
    before = csv.field_size_limit()
    yield before
    csv.field_size_limit(before)


def test_long_cells_where_the_process_allows_them(limit: int) -> None:
    assert limit < len(LONG)
    for read in (read_rows, read_dicts):
        with pytest.raises(PayloadError, match="CSV: field larger than field limit"):
            read(f"{LONG},b\n")
    allow_long_cells()
    assert read_rows(f"{LONG},b\n") == [[LONG, "b"]]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_they_like_and_quoted_cells_keep_theirs(end: str) -> None:
    assert read_rows(end.join(("a,b", '"1\r\n2",3', "", ""))) == [["a", "b"], ["1\r\n2", "3"]]


def test_names_are_renamed() -> None:
    assert read_dicts("A,b\n1,2\n3\n", str.lower) == (["a", "b"], [{"a": "1", "b": "2"}, {"a": "3", "b": None}])
    assert read_dicts("") == ([], [])


def test_a_byte_order_mark_is_no_part_of_the_first_name() -> None:
    assert read_dicts("\ufeffa,b\n\ufeff1,2\n") == (["a", "b"], [{"a": "\ufeff1", "b": "2"}])
    assert read_rows('\ufeff"a",b') == [["a", "b"]]
