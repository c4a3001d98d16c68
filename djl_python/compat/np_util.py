"""Numpy arrays to bytes and back: DJL's NDList format, .npy and .npz.

Runs in the worker; imported only by the methods of Input and Output that need it. An NDList is big-endian: an int32
count, then for each array the string "NDAR", the int32 version 3, a byte that says whether a name string follows,
the storage format, the data type, the shape, a byte for the data's byte order, an int32 length and the data. Strings
carry an int16 length; a shape is an int32 count and as many int64s, then an int32 count and as many two-byte characters
that name the axes.
"""

from __future__ import annotations

import io
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..core.errors import DecodeError

_MAGIC: Final = "NDAR"
_VERSION: Final = 3
_NPY_MAGIC: Final = b"\x93NUMPY"
_ZIP_MAGIC: Final = b"PK"
#: The kinds of numpy's types that an NDList cannot have: objects, texts, bytes, dates and times.
_NO_NUMBERS: Final = "OUSMm"

#: Unpacked bytes of all arrays of an archive: four times the default limit of a body. Well-compressed data can unpack
#: to a thousand times its size.
MAX_NPZ_BYTES: Final = 256 * 2**20

#: What numpy and the libraries under it raise for bytes that are no array, or that claim to be a huge one.
_MALFORMED: Final = (
    *(ValueError, TypeError, AttributeError, KeyError, SyntaxError, RecursionError),  # a header's text
    *(EOFError, MemoryError, OverflowError, struct.error, tokenize.TokenError),
    *(zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, OSError),  # an archive: encrypted, ...
)

Array = np.ndarray[Any, Any]


def to_nd_list(arrays: Array | Iterable[Array]) -> bytes:
    """One array or several -> DJL's NDList.

    Raises:
        TypeError: something else, or an array of something else than numbers.
    """
    arrays = _arrays(arrays)
    for array in arrays:
        if array.dtype.kind in _NO_NUMBERS:
            raise TypeError(f"expected arrays of numbers, got one of {array.dtype.name}")
    out = bytearray(struct.pack(">i", len(arrays)))
    for array in arrays:
        kind = "BOOLEAN" if array.dtype == np.bool_ else array.dtype.name.upper()
        data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        out += _string(_MAGIC) + struct.pack(">ib", _VERSION, 0) + _string("default") + _string(kind)
        out += struct.pack(f">i{array.ndim}q", array.ndim, *array.shape)
        out += struct.pack(">i", array.ndim) + "?".encode("utf-16-be") * array.ndim
        out += struct.pack(">ci", b"<", len(data)) + data
    return bytes(out)


def from_nd_list(data: bytes) -> list[Array]:
    """DJL's NDList, .npy or .npz -> arrays (read-only where they share `data`'s memory).

    Raises:
        DecodeError: none of these formats, or cut off.
    """
    if data.startswith(_ZIP_MAGIC):
        return from_npz(data)
    if data.startswith(_NPY_MAGIC):
        try:
            return [np.load(io.BytesIO(data), allow_pickle=False)]
        except _MALFORMED as exc:
            raise DecodeError(f"not a .npy array: {exc}") from exc
    reader = _Reader(data)
    try:
        return [reader.array() for _ in range(reader.number(">i"))]
    except _MALFORMED as exc:
        raise DecodeError(f"not an NDList: {exc}") from exc


def to_npz(arrays: Array | Sequence[Array]) -> bytes:
    """One array or several -> .npz, named arr_0, arr_1, ...

    Raises:
        TypeError: something else, or an array of Python's objects, which would be pickled.
    """
    arrays = _arrays(arrays)
    if any(array.dtype.hasobject for array in arrays):
        raise TypeError("expected arrays of numbers or texts, got one of objects")
    out = io.BytesIO()
    np.savez(out, *arrays)
    return out.getvalue()


def _arrays(given: Any) -> list[Array]:
    """The arrays of an array or a list. The keys of a dict, or the letters of a text, are none."""
    if isinstance(given, np.ndarray):
        return [given]
    if isinstance(given, Mapping | str | bytes):
        raise TypeError(f"expected an array or a list of arrays, got a {type(given).__name__}")
    return [np.asarray(array) for array in given]


def from_npz(data: bytes) -> list[Array]:
    """.npz -> its arrays, in order. Object arrays (pickles) are refused.

    Raises:
        DecodeError: not that format, or unpacked larger than MAX_NPZ_BYTES.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            # Sized by name, as entries are read: of several entries with one name, the last one is read each time.
            size = sum(archive.zip.getinfo(name).file_size for name in archive.zip.namelist())
            if size <= MAX_NPZ_BYTES:
                return [archive[name] for name in archive.files]
    except _MALFORMED as exc:
        raise DecodeError(f"not an .npz archive: {exc}") from exc
    raise DecodeError(f"an .npz archive of {size} bytes, expected at most {MAX_NPZ_BYTES} when unpacked")


def _string(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise ValueError(f"{size} bytes expected at byte {self._at} of {len(self._data)}")
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def number(self, code: str) -> int:
        (value,) = struct.unpack(code, self.take(struct.calcsize(code)))
        return int(value)

    def string(self) -> str:
        return self.take(self.number(">h")).decode()

    def array(self) -> Array:
        if (magic := self.string()) != _MAGIC:
            raise ValueError(f"expected {_MAGIC}, found {magic!r}")
        if (version := self.number(">i")) != _VERSION:
            raise ValueError(f"version {version}, expected {_VERSION}")
        if self.number(">b") == 1:
            self.string()  # the name: Python's lists have none
        self.string()  # the storage format: sparse arrays are sent as dense ones
        kind = self.string().lower()
        shape = [self.number(">q") for _ in range(self.number(">i"))]
        self.take(2 * self.number(">i"))  # the names of the axes
        big = self.take(1) == b">"
        dtype = np.dtype("bool" if kind == "boolean" else kind).newbyteorder(">" if big else "<")
        return np.frombuffer(self.take(self.number(">i")), dtype).reshape(shape)
