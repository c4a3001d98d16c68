from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from djl_python import Input, Output
from djl_python.core.errors import PayloadError
from djl_python.encode_decode import decode, decode_csv, encode, encode_csv
from djl_python.np_util import from_nd_list, from_npz, to_nd_list, to_npz


def inputs(data: bytes) -> Input:
    made = Input()
    made.content.add("data", data)
    return made


@pytest.mark.parametrize(
    ("content_type", "data", "expected"),
    [
        ("application/json", b'{"inputs": 1}', {"inputs": 1}),
        ("application/json; charset=utf-8", b"[1]", [1]),
        (None, b'{"a": 1}', {"a": 1}),
        ("", b"", {"inputs": ""}),
        ("text/plain", b"hi", {"inputs": ["hi"]}),
        ("audio/wav", b"\x00", {"inputs": b"\x00"}),
        ("application/octet-stream", b"\x00", {"inputs": b"\x00"}),
        ("application/x-www-form-urlencoded", b"a", {"inputs": "a"}),
        ("text/csv", b"inputs\nx\ny\n", {"inputs": ["x", "y"]}),
        (
            "text/csv",
            b"Question,Context\nq,c\n",
            {"inputs": [{"question": "q", "context": "c"}]},
        ),
        ("text/csv", b"question\nq\n", {"inputs": [{"question": "q"}]}),
        ("text/csv", b"context\nc\n", {"inputs": [{"context": "c"}]}),
        ("application/jsonlines", b'{"a":1}\n\n[2]\n', {"inputs": [{"a": 1}, [2]]}),
    ],
)
def test_decode(content_type: str | None, data: bytes, expected: Any) -> None:
    assert decode(inputs(data), content_type) == expected


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.ones(2))
    return file.getvalue()


@pytest.mark.parametrize(
    ("content_type", "data"),
    [("tensor/ndlist", to_nd_list(np.ones(2))), ("tensor/npz", to_npz(np.ones(2))), ("application/x-npy", npy())],
)
def test_decode_arrays_and_another_key(content_type: str, data: bytes) -> None:
    made = inputs(b"")
    made.content.add("k", data)
    np.testing.assert_array_equal(decode(made, content_type, key="k")["inputs"], [np.ones(2)])


def test_decode_an_image() -> None:
    image = pytest.importorskip("PIL.Image").new("RGB", (2, 3))
    file = io.BytesIO()
    image.save(file, "png")
    assert decode(inputs(file.getvalue()), "image/png")["inputs"].size == (2, 3)


def test_decode_csv_of_another_key_without_a_header() -> None:
    made = inputs(b"")
    made.content.add("k", b"1,2\n")
    np.testing.assert_array_equal(decode(made, "text/csv", "k", require_csv_headers=False), [[1, 2]])


@pytest.mark.parametrize(
    ("content_type", "data", "message"),
    [
        ("text/csv", b"a,b\n1,2\n", "header line with a column named inputs"),
        ("text/csv", b"", "header line"),
        ("application/jsonlines", b"1\n{\n", "line 2 is not valid JSON"),
        ("application/jsonlines", b"1\n" + b"[" * 100_000, "line 2 is not valid JSON: .*nested too deeply"),
        ("application/json", b"{", "not valid JSON"),
    ],
)
def test_decode_errors(content_type: str, data: bytes, message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        decode(inputs(data), content_type)


def test_csv_of_numbers() -> None:
    np.testing.assert_array_equal(decode_csv(inputs(b"1,2\n3,4.5\n"), require_headers=False), [[1, 2], [3, 4.5]])
    with pytest.raises(PayloadError, match="numbers only"):
        decode_csv(inputs(b"1,x\n"), require_headers=False)
    with pytest.raises(PayloadError, match="number of columns"):
        decode_csv(inputs(b"1,2\n3\n"), require_headers=False)


def test_encode() -> None:
    shapes = {}
    for accept in ("", "application/json", "text/csv", "tensor/npz", "tensor/ndlist"):
        out = Output()
        encode(out, [{"a": 1}] if accept in ("", "application/json", "text/csv") else np.ones(2), accept, "k")
        assert out.content.get_keys() == ["k"]
        shapes[accept] = (out.properties["Content-Type"], out.content.value_at(0))
    assert shapes[""] == shapes["application/json"]
    assert json.loads(shapes[""][1]) == [{"a": 1}]
    assert shapes["text/csv"] == ("text/csv", b"a\r\n1\r\n")
    np.testing.assert_array_equal(from_npz(shapes["tensor/npz"][1])[0], np.ones(2))
    np.testing.assert_array_equal(from_nd_list(shapes["tensor/ndlist"][1])[0], np.ones(2))


@pytest.mark.parametrize("accept", [None, "*/*", "application/json, text/plain, */*", "text/html, */*;q=0.8"])
def test_encode_gives_json_to_who_takes_it(accept: str | None) -> None:
    out = Output()
    encode(out, [1, 2], accept)
    assert (out.properties["Content-Type"], out.content.value_at(0)) == ("application/json", b"[1,2]")


@pytest.mark.parametrize("accept", ["text/html", "tensor/ndlist, application/json;q=0.5"])
def test_encode_gives_arrays_to_who_takes_nothing_else(accept: str) -> None:
    out = Output()
    encode(out, np.ones(2), accept)
    assert out.properties["Content-Type"] == "tensor/ndlist"


def test_encode_csv() -> None:
    assert encode_csv([]) == ""
    assert encode_csv([{"a": 1, "b": "x,y"}]) == 'a,b\r\n1,"x,y"\r\n'
    with pytest.raises(ValueError, match="contains fields"):
        encode_csv([{"a": 1}, {"b": 2}])


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"a": 1}, "got dict"),
        ({}, "got dict"),
        ("ab", "got str"),
        (None, "got NoneType"),
        ([{"a": 1}, 2], "got a list with int"),
        ([["a"], 1], "got a list with list"),
        ([None], "got a list with NoneType"),
    ],
)
def test_values_without_rows_are_not_written_as_csv(given: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=f"text/csv: expected rows, a list of dicts, {problem}"):
        encode(Output(), given, "text/csv")


@pytest.mark.parametrize(
    ("content_type", "data"),
    [
        ("text/csv", b"a,b\n1,2\n"),
        ("text/csv", b"\xff"),
        ("application/json", b"{"),
        ("application/jsonlines", b"{"),
        ("text/plain", b"\xff"),
        ("tensor/npz", b"x"),
        ("tensor/ndlist", b"x"),
        ("application/x-npy", b"\x93NUMPY"),
    ],
)
def test_an_undecodable_body_is_a_value_error(content_type: str, data: bytes) -> None:
    """As in DJL, whose handlers catch that; and it is answered as the client's fault if none does."""
    with pytest.raises(ValueError) as caught:
        decode(inputs(data), content_type)
    assert isinstance(caught.value, PayloadError)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda value: st.lists(value) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), value),
    max_leaves=20,
)  # fmt: skip
_ARRAYS = st.lists(
    st_numpy.arrays(
        st.sampled_from([np.dtype(name) for name in "float32 float64 float16 int32 int64 int8 uint8 bool".split()]),
        st_numpy.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    ),
    min_size=1, max_size=3,
)  # fmt: skip


def sent_back(prediction: Any, accept: str) -> Input:
    """The call of a client that sends on what it was answered."""
    answer = Output()
    encode(answer, prediction, accept)
    made = inputs(answer.content.value_at(0))
    made.properties["content-type"] = answer.properties["Content-Type"]
    return made


@given(_JSON)
def test_json_comes_back_as_it_was(value: Any) -> None:
    back = sent_back(value, "application/json")
    assert decode(back, back.get_property("content-type")) == back.get_data() == value


@given(_ARRAYS, st.sampled_from(["tensor/npz", "tensor/ndlist"]))
def test_arrays_come_back_as_they_were(arrays: list[np.ndarray[Any, Any]], accept: str) -> None:
    back = sent_back(arrays, accept)
    for decoded in (decode(back, back.get_property("content-type"))["inputs"], back.get_data()):
        assert [one.dtype for one in decoded] == [one.dtype for one in arrays]
        for one, expected in zip(decoded, arrays, strict=True):
            np.testing.assert_array_equal(one, expected)


_CELL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(st.lists(st.fixed_dictionaries({"question": _CELL, "context": _CELL}), min_size=1))
def test_rows_come_back_as_they_were(rows: list[dict[str, str]]) -> None:
    back = sent_back(rows, "text/csv")
    assert decode(back, back.get_property("content-type"))["inputs"] == rows
