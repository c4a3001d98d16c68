from __future__ import annotations

import io
import json
import struct
import sys
import zlib

import msgspec
import numpy as np
import pytest

from djl_python import Input
from djl_python.core.errors import PayloadError
from djl_python.ipc.protocol import Call
from djl_python.np_util import to_nd_list, to_npz


def call(body: bytes = b"", headers: dict[str, str] | None = None, query: tuple[tuple[str, str], ...] = ()) -> Call:
    return Call(1, "lmi", "predict", "POST", "/predictions/m", query, headers or {}, body)


def inputs(body: bytes, content_type: str = "") -> Input:
    return Input.from_call(call(body, {"content-type": content_type}))


def test_body_is_the_content_data_and_query_comes_first() -> None:
    made = Input.from_call(call(b"{}", {"content-type": "application/json"}, (("a", "1"), ("a", "2"))))
    assert list(made.content) == [("a", b"1"), ("a", b"2"), ("data", b"{}")]
    assert made.get_as_bytes() == b"{}"
    assert made.get_as_string("a") == "1"
    assert made.contains_key("a") and not made.contains_key("b")


def test_an_empty_body_is_not_the_loading_call() -> None:
    assert Input().is_empty()
    assert not Input.from_call(call()).is_empty()
    assert list(inputs(b"", "application/x-www-form-urlencoded").content) == [("data", b"")]
    assert not inputs(b"--x--\r\n", "multipart/form-data; boundary=x").is_empty()


def test_a_header_makes_no_batch_of_a_call() -> None:
    made = Input.from_call(call(b"x", {"batch_size": "1000000"}), {"batch_size": "4"})
    assert not made.is_batch() and made.get_batches() == [made]


def test_model_properties_win_over_headers_and_names_have_no_case() -> None:
    made = Input.from_call(
        call(headers={"model_id": "evil", "x-a": "1"}),
        {"model_id": "mine", "MixedCase": "2"},
        model_name="m",
        model_version="v",
        function_name="handle",
        request_id="r",
    )
    assert made.get_property("Model_ID") == "mine"
    assert made.get_property("mixedcase") == "2"
    assert made.get_property("X-A") == "1"
    assert made.get_property("none") is None
    assert (made.model_name, made.model_version, made.get_function_name()) == ("m", "v", "handle")
    assert (made.request_id, made.get_property("x-request-id")) == ("r", "r")
    assert (made.operation, made.dialect, made.path) == ("predict", "lmi", "/predictions/m")
    sent = msgspec.structs.replace(call(headers={"x-request-id": "theirs"}), waited_s=0.5)
    assert (Input.from_call(sent).request_id, Input.from_call(sent).waited_s) == ("theirs", 0.5)


def test_form_fields_are_content_entries() -> None:
    made = inputs(b"text=a%20b&x=&text=%C3%A9", "application/x-www-form-urlencoded")
    assert list(made.content) == [("text", b"a b"), ("x", b""), ("text", "é".encode())]


def test_multipart_fields_keep_their_bytes() -> None:
    body = (
        b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n\x00\r\n\n\r--B\xff\r\n"
        b'--B\r\ncontent-disposition: form-data; name="text"\r\n\r\nhi\r\n--B--\r\n'
    )
    made = inputs(body, "multipart/form-data; boundary=B")
    assert list(made.content) == [("file", b"\x00\r\n\n\r--B\xff"), ("text", b"hi")]


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"", "is empty"),
        (b"{", "not valid JSON"),
        (b'{"a": nope}', "byte 10"),
        (b"\xff", "not valid JSON"),
        (b'"\xff"', "not valid JSON"),
    ],
)
def test_json_errors_say_what_and_where(body: bytes, where: str) -> None:
    with pytest.raises(PayloadError, match="the request body") as caught:
        inputs(body, "application/json").get_as_json()
    assert where in caught.value.message


def test_deep_json_is_an_error_not_a_crash() -> None:
    with pytest.raises(PayloadError):
        inputs(b"[" * 100_000).get_as_json()


def test_missing_key_and_missing_content() -> None:
    with pytest.raises(KeyError, match="requested data for key: b is not found!"):
        inputs(b"x").get_as_bytes("b")
    assert Input().get_as_bytes() is None
    assert Input().get_data() is None
    with pytest.raises(PayloadError, match="no content"):
        Input().get_as_string()


def test_without_data_the_first_entry_is_meant() -> None:
    assert inputs(b"a=1&b=2", "application/x-www-form-urlencoded").get_as_string() == "1"


def test_text_that_is_not_utf8() -> None:
    with pytest.raises(PayloadError, match="not UTF-8 text"):
        inputs(b"ab\xff").get_as_string()
    with pytest.raises(PayloadError, match=r"^the content 'a' is not UTF-8 text"):
        inputs(b"a=%ff", "application/x-www-form-urlencoded").get_as_string("a")


@pytest.mark.parametrize(
    ("content_type", "body", "expected"),
    [
        ("application/json; charset=utf-8", b"[1]", [1]),
        ("text/plain", b"hi", "hi"),
        ("application/octet-stream", b"hi", b"hi"),
        ("", b"hi", b"hi"),
    ],
)
def test_get_data_decodes_by_content_type(content_type: str, body: bytes, expected: object) -> None:
    assert inputs(body, content_type).get_data() == expected


def test_arrays_in_djls_format_npz_and_npy() -> None:
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array([True, False])]
    npy = io.BytesIO()
    np.save(npy, arrays[0])
    for made in (inputs(to_nd_list(arrays), "tensor/ndlist"), inputs(to_npz(arrays), "tensor/npz")):
        for got, expected in zip(made.get_data(), arrays, strict=True):
            np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(inputs(npy.getvalue()).get_as_numpy()[0], arrays[0])
    for method in ("get_as_numpy", "get_as_npz"):
        with pytest.raises(PayloadError):
            getattr(inputs(b"PK rubbish"), method)()


def test_csv() -> None:
    assert inputs(b"a,b\n1,2\n").get_as_csv() == [{"a": "1", "b": "2"}]
    with pytest.raises(PayloadError, match="CSV: "):
        inputs(b"a\n" + b"x" * 200_000).get_as_csv()


def png(width: int, height: int) -> bytes:
    """An image whose rows are missing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"x", "the request body is not an image$"),
        (png(60_000, 60_000), "is not an image that can be read: .*exceeds limit"),
        (png(100, 100), "is not an image that can be read: .*truncated"),
    ],
    ids=["no image", "huge", "cut off"],
)
def test_an_unreadable_image_is_the_clients_error(data: bytes, message: str) -> None:
    pytest.importorskip("PIL")
    with pytest.raises(PayloadError, match=message):
        inputs(data, "image/png").get_as_image()


def test_an_image_that_was_not_sent_is_missing_as_any_other_content() -> None:
    pytest.importorskip("PIL")
    with pytest.raises(KeyError, match="requested data for key: mask is not found!"):
        inputs(png(1, 1), "image/png").get_as_image("mask")


def test_image_without_pillow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="pip install pillow"):
        inputs(b"x", "image/png").get_data()


def test_batches_in_both_of_djls_key_forms() -> None:
    batch = Input()
    batch.properties = {
        "batch_size": "2",
        "batch_000.content-type": "a/b",
        "batch_001_x-request-id": "r1",
        "model_dir": "/m",
    }
    batch.content.add("batch_001.data", b"1")
    batch.content.add("batch_000_data", b"0")
    assert batch.is_batch() and batch.get_batch_size() == 2
    first, second = batch.get_batches()
    assert (first.get_as_bytes(), second.get_as_bytes()) == (b"0", b"1")
    assert first.properties == {"content-type": "a/b", "model_dir": "/m"}
    assert second.request_id == "r1"
    batch.content.add("batch_002.data", b"2")
    with pytest.raises(ValueError, match="item 2 in a batch of 2"):
        batch.get_batches()


def test_a_single_call_is_its_own_batch() -> None:
    one = inputs(b"x")
    assert one.get_batches() == [one]
    assert (one.is_batch(), one.get_batch_size()) == (False, 1)
    assert json.dumps(str(one))  # readable, without the content itself
    assert "data: 1 bytes" in str(one)


@pytest.mark.parametrize("body", [b'{"a": 1}', b'{"a": "b=c&d"}', b"a=b"])
def test_a_form_in_place_of_json_is_named(body: bytes) -> None:
    """Without a Content-Type, curl says that its body is a form."""
    sent = inputs(body, "application/x-www-form-urlencoded")
    with pytest.raises(PayloadError) as refused:
        sent.get_as_json()
    assert refused.value.message == (
        "the request body: a form (application/x-www-form-urlencoded), expected JSON; for JSON send "
        "Content-Type: application/json"
    )


def test_fields_of_a_form_may_be_json() -> None:
    sent = inputs(b"a=1&data=%5B2%5D", "application/x-www-form-urlencoded")
    assert (sent.get_as_json("a"), sent.get_as_json()) == (1, [2])
