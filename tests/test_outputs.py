from __future__ import annotations

import datetime
import json
from typing import Any

import numpy as np
import pytest

from djl_python import Output
from djl_python.np_util import from_nd_list, from_npz
from djl_python.outputs import concatenate, encode_item, item_content_type, stream_line


def test_values_become_bytes_and_the_first_decides_the_content_type() -> None:
    out = Output().add("é").add(b"\x00").add(bytearray(b"b")).add({"a": 1}, key="k")
    assert list(out.content) == [(None, "é".encode()), (None, b"\x00"), (None, b"b"), ("k", b'{"a":1}')]
    assert out.content_type == "text/plain; charset=utf-8"
    assert concatenate(out.content.values) == "é\x00b".encode() + b'{"a":1}'
    assert Output().add(b"").content_type == "application/octet-stream"
    assert Output().add([1]).content_type == "application/json"
    assert Output().content_type is None


def test_setters_chain() -> None:
    out = Output().set_code(201).set_message("made").add_property("X-A", 1)
    assert (out.code, out.message, out.properties) == (201, "made", {"X-A": "1"})
    assert "201" in str(out)


def test_error_has_djls_body() -> None:
    out = Output().error("it broke")
    assert (out.code, out.message) == (424, "invoke handler failure")
    assert json.loads(out.content.value_at(0)) == {
        "code": 424,
        "message": "invoke handler failure",
        "error": "it broke",
    }
    assert Output().error("x", code=500, message="m").code == 500


def test_json_of_what_handlers_have() -> None:
    value = {
        "scalar": np.float32(0.5),
        "int": np.int64(3),
        "array": np.arange(2),
        "when": datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC),
        "tuple": (1,),
    }
    out = Output().add_as_json(value)
    assert json.loads(out.content.value_at(0)) == {
        "scalar": 0.5,
        "int": 3,
        "array": [0, 1],
        "when": "2024-01-02T00:00:00Z",
        "tuple": [1],
    }
    with pytest.raises(TypeError, match="object has no JSON form"):
        Output().add_as_json([object()])


def test_arrays() -> None:
    out = Output().add_as_numpy([np.ones(2)]).add_as_npz([np.zeros(1)])
    np.testing.assert_array_equal(from_nd_list(out.content.value_at(0))[0], np.ones(2))
    np.testing.assert_array_equal(from_npz(out.content.value_at(1))[0], np.zeros(1))
    assert out.content_type == "tensor/ndlist"


def test_batch_entries_have_djls_keys() -> None:
    out = Output().add("a", batch_index=0).add("b", key="k", batch_index=12).error("bad", batch_index=1)
    assert out.content.get_keys() == ["batch_000.data", "batch_012.k", "batch_001.data"]
    text, as_json = "text/plain; charset=utf-8", "application/json"
    assert out.item_content_types == {0: text, 12: text, 1: as_json}
    assert out.properties == {"batch_001.code": "424", "batch_001.content-type": "application/json"}
    assert out.code == 200


def test_stream_formatters() -> None:
    assert stream_line(["t"]) == b'{"outputs":["t"]}\n'
    assert [encode_item(item) for item in ("a", b"b", {"c": 1})] == [b"a", b"b", b'{"c":1}\n']
    kinds = ["text/plain; charset=utf-8", "application/octet-stream", "application/jsonlines"]
    assert [item_content_type(item) for item in ("a", b"b", {"c": 1})] == kinds
    items = iter("ab")
    default = Output().add_stream_content(items)
    assert default.stream_content is items
    assert default.stream_formatter is stream_line and default.content_type == "application/jsonlines"
    bare = Output().add_stream_content(items, output_formatter=None)
    assert bare.stream_formatter is encode_item and bare.content_type is None
    assert Output().add_stream_content(items, str.upper).stream_formatter == str.upper
    assert Output().add("first").add_stream_content(items).content_type == kinds[0], "the first decides"


def test_finalizer_runs_once() -> None:
    seen: list[int] = []
    out = Output().finalize(seen.append, 1)
    assert out.has_finalizer
    out.execute_finalize()
    assert out.execute_finalize() is None
    assert seen == [1] and not out.has_finalizer


@pytest.mark.parametrize("value", [float("nan"), [1.0, float("inf")], {"a": {"b": (None, float("-inf"))}}])
def test_numbers_that_json_does_not_have_are_errors(value: Any) -> None:
    """As in DJL: they would reach a client as null."""
    with pytest.raises(ValueError, match="JSON has no number"):
        Output().add_as_json(value)
    with pytest.raises(ValueError, match="JSON has no number nan"):
        Output().add_as_json({"array": np.array([1.0, np.nan])})
    assert Output().add_as_json({"none": None, "text": "null"}).content.value_at(0) == b'{"none":null,"text":"null"}'
