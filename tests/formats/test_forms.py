from __future__ import annotations

import pytest

from djl_python.core.errors import PayloadError
from djl_python.formats.forms import media_type, parse_form

MULTIPART = 'multipart/form-data; boundary="a b"'


def part(disposition: str, data: bytes = b"x") -> bytes:
    return b"--a b\r\nContent-Disposition: " + disposition.encode() + b"\r\n\r\n" + data + b"\r\n--a b--\r\n"


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        ('form-data; name="plain"', "plain"),
        ("form-data; name=bare", "bare"),
        (r'form-data; name="q\"uote"', 'q"uote'),
        ('form-data; name="q%22uote"', 'q"uote'),
        ('form-data; filename="name=x; name=y"; name="semi;colon"', "semi;colon"),
        ('form-data; name="ü"', "ü"),
        ("form-data; name*=UTF-8''%C3%BC", "ü"),
    ],
)
def test_field_names(disposition: str, name: str) -> None:
    assert parse_form(MULTIPART, part(disposition)) == [(name, b"x")]


def test_preamble_and_empty_value() -> None:
    assert parse_form(MULTIPART, b"preamble\r\n" + part('form-data; name="a"', b"")) == [("a", b"")]
    assert parse_form(MULTIPART, b"--a b--") == []


@pytest.mark.parametrize(
    ("content_type", "body", "message"),
    [
        ("multipart/form-data", b"", "without a boundary"),
        (MULTIPART, b"", "closing boundary is missing"),
        (MULTIPART, part('form-data; name="a"')[:-6], "closing boundary is missing"),
        (MULTIPART, b"--a b\r\nnothing\r\n--a b--", "without an empty line"),
        (MULTIPART, part("form-data"), "without content-disposition"),
    ],
)
def test_a_body_that_is_no_form_is_refused(content_type: str, body: bytes, message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        parse_form(content_type, body)


def test_media_type() -> None:
    assert media_type(" Text/Plain; charset=x") == "text/plain"
    assert media_type("") == ""
