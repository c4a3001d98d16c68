"""A body as a JSON object, and the header of what had no effect."""

from __future__ import annotations

from typing import Any

import pytest

from djl_python.config import ModelConfig
from djl_python.core.errors import MediaTypeError, PayloadError
from djl_python.dialects.shared.request_body import ignored_header, json_object, shown
from djl_python.inputs import Input
from djl_python.ipc.protocol import Call

MODEL = ModelConfig(name="served")


def inputs(body: bytes, content_type: str | None = None) -> Input:
    headers = {} if content_type is None else {"content-type": content_type}
    return Input.from_call(Call(1, "d", "o", "POST", "/", (), headers, body))


@pytest.mark.parametrize(
    "content_type", [None, "application/json", "Application/JSON; charset=utf-8", "application/a+json"]
)
def test_a_json_object_is_read(content_type: str | None) -> None:
    assert json_object(inputs(b'{"a": 1}', content_type), MODEL) == {"a": 1}


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "application/jsonlines"])
def test_other_content_types_are_refused(content_type: str) -> None:
    with pytest.raises(MediaTypeError, match=f"got {content_type}") as caught:
        json_object(inputs(b"{}", content_type), MODEL)
    assert caught.value.status == 415


@pytest.mark.parametrize(("body", "message"), [(b"{", "not valid JSON"), (b"", "is empty"), (b"[1]", r"got \[1\]")])
def test_a_body_that_is_no_object_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(PayloadError, match=message) as caught:
        json_object(inputs(body), MODEL)
    assert (caught.value.status, caught.value.field) == (400, None)


@pytest.mark.parametrize(("value", "text"), [("a", '"a"'), (None, "null"), ([1.5], "[1.5]")])
def test_values_are_shown_as_json(value: Any, text: str) -> None:
    assert shown(value) == text


def test_long_values_are_cut() -> None:
    assert shown("a" * 1000) == f'"{"a" * 56}...'


def test_ignored_names_are_one_header() -> None:
    assert ignored_header(["a", "b"]) == {"x-ignored-parameters": "a,b"}
    assert ignored_header([]) == {}
    assert ignored_header(["a\r\nset-cookie: b", "\u00e9"])["x-ignored-parameters"] == r"'a\r\nset-cookie: b','\xe9'"
    assert len(ignored_header(["a" * 5000])["x-ignored-parameters"]) == 1003
