"""Every datatype's values, as JSON and as bytes: what it holds, and the first that it does not."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from djl_python.core.errors import PayloadError
from djl_python.dialects.triton.tensors import read_tensors
from djl_python.dialects.triton.types import InputTensor

INTEGERS = {f"INT{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)} | {
    f"UINT{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)
}
FORMATS = dict(zip(INTEGERS, "bhiqBHIQ", strict=True)) | {"FP16": "e", "FP32": "f", "FP64": "d", "BOOL": "?"}
TAKEN: dict[str, list[Any]] = {
    **{name: [low, high] for name, (low, high) in INTEGERS.items()},
    **{name: [1, -0.5] for name in ("FP16", "FP32", "FP64")},
    "BOOL": [True, False],
    "BYTES": ["", "é"],
}
REFUSED: dict[str, list[Any]] = {
    **{name: [low - 1, high + 1, 0.5, "1", True, None] for name, (low, high) in INTEGERS.items()},
    **{name: [True, "1", None] for name in ("FP16", "FP32", "FP64")},
    "BOOL": [0, 1, "true", None],
    "BYTES": [1, True, None, {}],
}


def described(datatype: Any, count: int, data: Any = None, **parameters: Any) -> InputTensor:
    return InputTensor(name="x", shape=[count], datatype=datatype, data=data, parameters=parameters or None)


@pytest.mark.parametrize("datatype", TAKEN)
def test_json(datatype: str) -> None:
    taken = TAKEN[datatype]
    tensor = read_tensors([described(datatype, 2, [[taken[0]], taken[1]])], b"")["x"]
    assert (tensor.values, tensor.datatype, tensor.shape) == (tuple(taken), datatype, (2,))
    for value in REFUSED[datatype]:
        with pytest.raises(PayloadError, match=rf"expected {datatype}, got ") as caught:
            read_tensors([described(datatype, 1, [value])], b"")
        assert caught.value.field == "inputs[0].data"


def test_json_may_be_nested_deeper_than_python_s_functions() -> None:
    nested: list[Any] = ["a"]
    for level in range(5000):
        nested = [nested, "b"] if level % 5 == 0 else [nested]
    values = read_tensors([described("BYTES", 1001, nested)], b"")["x"].values
    assert values == ("a", *["b"] * 1000)


@pytest.mark.parametrize("datatype", FORMATS)
def test_bytes(datatype: str) -> None:
    taken = TAKEN[datatype]
    data = struct.pack(f"<2{FORMATS[datatype]}", *taken)
    assert read_tensors([described(datatype, 2, binary_data_size=len(data))], data)["x"].values == tuple(taken)
    if len(data) > 2:
        with pytest.raises(PayloadError, match="are no whole number of") as caught:
            read_tensors([described(datatype, 2, binary_data_size=len(data) - 1)], data[:-1])
        assert caught.value.field == "inputs[0]"


def test_sizes_are_numbers_of_the_bytes_there_are() -> None:
    for size in (True, 1.0, "1", -1, 3):
        with pytest.raises(PayloadError, match=r"expected an integer >= 0 and <= 2, the bytes there are") as caught:
            read_tensors([described("UINT8", 1, binary_data_size=size)], b"ab")
        assert caught.value.field == "inputs[0].parameters.binary_data_size"


def test_the_second_tensor_takes_the_bytes_behind_the_first() -> None:
    tensors = [described("UINT8", 1, binary_data_size=1), InputTensor(name="y", shape=[1], datatype="UINT8", data=[9])]
    tensors.append(InputTensor(name="z", shape=[2], datatype="UINT8", parameters={"binary_data_size": 2}))
    by_name = read_tensors(tensors, b"\x01\x02\x03")
    assert [by_name[name].values for name in "xyz"] == [(1,), (9,), (2, 3)]
    with pytest.raises(PayloadError, match="2, the bytes there are, got 3"):
        tensors[2] = InputTensor(name="z", shape=[3], datatype="UINT8", parameters={"binary_data_size": 3})
        read_tensors(tensors, b"\x01\x02\x03")
    with pytest.raises(PayloadError, match="there is another tensor x") as caught:
        read_tensors([described("UINT8", 1, [1]), described("UINT8", 1, [1])], b"")
    assert caught.value.field == "inputs[1].name"
