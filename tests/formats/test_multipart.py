"""What a multipart body means does not depend on where it is cut into pieces."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djl_python.core.errors import PayloadError
from djl_python.formats.multipart import MAX_HEAD_BYTES, Begun, MultipartReader

CONTENT_TYPE = "multipart/form-data; boundary=xy"
HEAD = b'Content-Disposition: form-data; name="%s"'
#: Data that looks like what delimits it.
TRICKY = [b"", b"\r\n", b"\r\n--x", b"--xy", b"\r\r\n--", b"a\r\n\r\nb", b"-" * 9, b"\n--xy--", b"\r\n--x\r\n--x"]


def body(*parts: bytes) -> bytes:
    """A form whose fields are called a, b and so on."""
    named = (b"--xy\r\n" + HEAD % bytes([97 + number]) + b"\r\n\r\n" + data for number, data in enumerate(parts))
    return b"preamble\r\n" + b"".join(part + b"\r\n" for part in named) + b"--xy--\r\nepilogue --xy"


def read(pieces: list[bytes]) -> list[tuple[str, str, bytes]]:
    """(name, filename, data) of each part."""
    reader = MultipartReader(CONTENT_TYPE)
    parts: list[tuple[str, str, bytes]] = []
    for piece in pieces:
        for one in reader.feed(piece):
            if isinstance(one, Begun):
                parts.append((one.name, one.filename, b""))
            else:
                assert one
                parts[-1] = (*parts[-1][:2], parts[-1][2] + one)
    reader.end()
    return parts


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_pieces_of_any_size(size: int) -> None:
    whole = body(*TRICKY)
    parts = read([whole[at : at + size] for at in range(0, len(whole), size)])
    assert parts == [(chr(97 + number), "", data) for number, data in enumerate(TRICKY)]


@given(st.lists(st.lists(st.sampled_from([b"\r", b"\n", b"-", b"x", b"z"]), max_size=12), max_size=4), st.data())
def test_pieces_cut_anywhere(values: list[list[bytes]], data: st.DataObject) -> None:
    parts = [joined for value in values if b"\r\n--xy" not in (joined := b"".join(value))]
    whole = body(*parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert [one[2] for one in read(pieces)] == parts


@pytest.mark.parametrize(
    ("disposition", "filename"),
    [
        ('form-data; name="a"', ""),
        ('form-data; name="a"; filename="my file.jsonl"', "my file.jsonl"),
        ("form-data; name=\"a\"; filename*=UTF-8''%C3%BC.jsonl", "ü.jsonl"),
    ],
)
def test_names_of_files(disposition: str, filename: str) -> None:
    part = b"--xy\r\nContent-Disposition: %b\r\nContent-Type: text/plain\r\n\r\nx\r\n--xy--" % disposition.encode()
    assert read([part]) == [("a", filename, b"x")]


def test_data_is_not_held_back() -> None:
    """But for what may be the beginning of a delimiter."""
    reader = MultipartReader(CONTENT_TYPE)
    opened = list(reader.feed(b"--xy\r\n" + HEAD % b"a" + b"\r\n\r\n" + b"x" * 1000))
    assert opened[0] == Begun("a") and isinstance(opened[1], bytes) and len(opened[1]) > 990


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        (b"", "closing boundary is missing"),
        (body(b"x").partition(b"--xy--")[0], "closing boundary is missing"),
        (b"--xy\r\nContent-Dispo", "closing boundary is missing"),
        (b"--xy\r\nnothing\r\n--xy--", "without an empty line"),
        (b"--xy\r\nnothing\r\n--xy\r\nmore: 1\r\n\r\n--xy--", "without an empty line"),
        (b"--xy\r\na: b\r\n\r\nx\r\n--xy--", "without content-disposition"),
        (b"--xy\r\n" + HEAD % b"\xff" + b"\r\n\r\nx\r\n--xy--", "is not UTF-8"),
        (b"--xy\r\nx: " + b"x" * MAX_HEAD_BYTES, "of headers"),
    ],
)
def test_a_body_that_is_no_form_is_refused(whole: bytes, message: str) -> None:
    for size in (1, len(whole) or 1):
        with pytest.raises(PayloadError, match=re.escape(message)):
            read([whole[at : at + size] for at in range(0, len(whole), size)])


@pytest.mark.parametrize("boundary", ["boundary*=utf-8''%e2%82%ac", 'boundary="\u20ac"'])
def test_a_boundary_that_no_body_can_have(boundary: str) -> None:
    with pytest.raises(PayloadError, match="expected a boundary in ASCII"):
        MultipartReader(f"multipart/form-data; {boundary}")
