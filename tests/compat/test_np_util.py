from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from djl_python.core.errors import PayloadError
from djl_python.np_util import from_nd_list, from_npz, to_nd_list, to_npz


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "uint8", "int32", "int64", "bool", ">f4"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_round_trip(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    (got,) = from_nd_list(to_nd_list(array))
    np.testing.assert_array_equal(got, array)
    assert got.shape == shape and got.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
    (got,) = from_npz(to_npz([array]))
    np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize("write", [to_nd_list, to_npz])
@pytest.mark.parametrize("given", [{"inputs": np.ones(2)}, "text", b"bytes", [{"a": 1}], np.array([None])])
def test_a_value_that_is_no_array_is_not_written(write: Callable[[Any], bytes], given: Any) -> None:
    with pytest.raises(TypeError, match="expected"):
        write(given)


def test_texts_are_written_to_npz_only() -> None:
    assert from_npz(to_npz([np.array(["a"])]))[0].tolist() == ["a"]
    with pytest.raises(TypeError, match="expected arrays of numbers, got one of str32"):
        to_nd_list([np.array(["a"])])


def test_djls_layout() -> None:
    encoded = to_nd_list(np.array([1.5], dtype=np.float32))
    assert encoded == (
        struct.pack(">i", 1)
        + b"\0\4NDAR"
        + struct.pack(">ib", 3, 0)
        + b"\0\7default\0\7FLOAT32"
        + struct.pack(">iqi", 1, 1, 1)
        + b"\0?<"
        + struct.pack(">i", 4)
        + struct.pack("<f", 1.5)
    )


def test_a_named_big_endian_array() -> None:
    data = struct.pack(">i", 1) + b"\0\4NDAR" + struct.pack(">ib", 3, 1) + b"\0\4name" + b"\0\7default\0\5INT32"
    data += struct.pack(">iqi", 1, 2, 0) + b">" + struct.pack(">iii", 8, 7, -1)
    np.testing.assert_array_equal(from_nd_list(data)[0], [7, -1])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0\1",
        b"\0\0\0\1\0\4XXXX" + bytes(20),
        b"\x93NUMPY",
        to_nd_list(np.ones(3))[:-1],
        struct.pack(">i", 2**31 - 1),
        to_nd_list(np.ones(3)).replace(b"FLOAT64", b"NOTATYP"),
    ],
)
def test_a_broken_ndlist_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadError):
        from_nd_list(data)


def test_pickles_are_refused() -> None:
    archive = io.BytesIO()
    np.savez(archive, np.array([{"a": 1}], dtype=object))
    with pytest.raises(PayloadError):
        from_npz(archive.getvalue())


def test_a_huge_archive_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = io.BytesIO()
    np.savez_compressed(archive, a=np.zeros(2**20), b=np.ones(1))
    assert len(archive.getvalue()) < 2**14
    assert len(from_npz(archive.getvalue())) == 2
    monkeypatch.setattr("djl_python.np_util.MAX_NPZ_BYTES", 2**20)
    for unpack in (from_npz, from_nd_list):
        with pytest.raises(PayloadError, match=r"an \.npz archive of 8388\d+ bytes, expected at most 1048576"):
            unpack(archive.getvalue())
    monkeypatch.setattr("djl_python.np_util.MAX_NPZ_BYTES", 2 * (128 + 800))
    (first, second) = from_npz(to_npz([np.ones(100), np.ones(100)]))
    assert len(first) + len(second) == 200
    with pytest.raises(PayloadError, match=r"an \.npz archive of 1864 bytes"):
        from_npz(to_npz([np.ones(100), np.ones(101)]))


def test_an_entry_counts_as_often_as_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("djl_python.np_util.MAX_NPZ_BYTES", 2_000)
    large = io.BytesIO()
    np.save(large, np.ones(100))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as zipped, pytest.warns(UserWarning, match="Duplicate name"):
        for entry in (b"", b"", large.getvalue()):
            zipped.writestr("a.npy", entry)
    with pytest.raises(PayloadError, match=r"an \.npz archive of 2784 bytes"):
        from_npz(archive.getvalue())


def npy(header: str) -> bytes:
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode()


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}",
        "{'descr': (((",
        "[" * 5000,
        "{'descr': '<f8'}",
    ],
)
def test_a_broken_npy_header_is_refused(header: str) -> None:
    with pytest.raises(PayloadError):
        from_nd_list(npy(header))


def test_a_damaged_archive() -> None:
    archive = io.BytesIO()
    np.savez_compressed(archive, np.arange(10_000))
    data = bytearray(archive.getvalue())
    data[100:140] = bytes(40)
    with pytest.raises(PayloadError, match=r"not an \.npz archive"):
        from_npz(bytes(data))
