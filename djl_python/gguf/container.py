"""Reads one GGUF file: header, metadata, types, shapes and offsets of tensors. Runs wherever a GGUF file is read.

The file is mapped. Every count and length is compared with what is left of the file before anything is allocated for
it, so that a damaged or hostile file costs no more than a `GgufError`.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from .errors import GgufError
from .types import ARRAY, BOOL, SCALARS, STRING, TENSOR_TYPES, TensorType

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
_ALIGNMENT: Final = "general.alignment"
_DEFAULT_ALIGNMENT: Final = 32
_HEADER_BYTES: Final = 24

# The largest vocabularies have some 300,000 entries, and the largest models some thousand tensors in a file.
_MOST_ENTRIES: Final = 1 << 20
_MOST_TENSORS: Final = 1 << 18
#: Entries of metadata: models have some fifty. Strings of all its lists: tokens, and merges, of which there may be
#: twice as many. Each takes a microsecond or more, and 60 bytes.
_MOST_KEYS: Final = 1 << 14
_MOST_STRINGS: Final = 1 << 21
#: Bytes of a single string, such as a chat template.
_LONGEST_STRING: Final = 1 << 24
_LONGEST_KEY: Final = (1 << 16) - 1
_LONGEST_NAME: Final = 1024
_LONGEST_METADATA: Final = 1 << 29
_MOST_DIMENSIONS: Final = 4
_MOST_NUMBERS: Final = 1 << 62
#: The fewest bytes that an entry of the metadata takes (key's length, type, one byte), and a tensor's description.
_LEAST_ENTRY: Final = 13
_LEAST_TENSOR: Final = 24


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file.

    Attributes:
        shape: as torch has it, rows first: GGUF stores it the other way round.
        start: its first byte in the file.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    start: int

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self.numbers // self.type.numbers * self.type.size


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file, mapped into memory.

    Attributes:
        metadata: by key; arrays are lists of strings, or of numpy's numbers.
        tensors: by name.
    """

    path: Path
    version: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    mapped: memoryview

    def stored(self, tensor: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The tensor's bytes in the file, as a view that copies nothing."""
        return np.frombuffer(self.mapped, np.uint8, tensor.size, tensor.start)


def read_file(path: Path) -> GgufFile:
    """Read a GGUF file's header, metadata and table of tensors.

    Raises:
        GgufError: it is no GGUF file of version 2 or 3, or it is damaged; says where.
    """
    try:
        with path.open("rb") as opened:
            size = opened.seek(0, 2)
            if size < _HEADER_BYTES:
                raise GgufError(f"{path}: {size} bytes; expected a GGUF file, whose header alone has {_HEADER_BYTES}")
            mapped = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as exc:
        raise GgufError(f"{path}: can't be read: {exc.strerror}") from exc
    return _Reader(path, mapped).read()


def is_gguf(path: Path) -> bool:
    """Whether a file begins with GGUF's magic number; False for a file that can't be read."""
    try:
        with path.open("rb") as opened:
            return opened.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


class _Reader:
    """Reads from the beginning of a mapped file; `_at` is the next byte."""

    def __init__(self, path: Path, mapped: memoryview) -> None:
        self._path, self._mapped, self._at = path, mapped, 0
        self._end = len(mapped)
        self._string_count = 0

    def read(self) -> GgufFile:
        version = self._version()
        tensors = self._number("<Q", "the number of tensors")
        entries = self._number("<Q", "the number of metadata entries")
        self._fits(tensors, _LEAST_TENSOR, _MOST_TENSORS, "tensors")
        self._fits(entries, _LEAST_ENTRY, _MOST_KEYS, "metadata entries")
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self._string("a metadata key", _LONGEST_KEY)
            if key in metadata:
                self._refuse(f"the metadata has {key!r} twice")
            kind = self._number("<I", f"the type of {key}")
            metadata[key] = self._array(key) if kind == ARRAY else self._value(key, kind)
            if self._at > _LONGEST_METADATA:
                self._refuse(f"metadata of more than {_LONGEST_METADATA} bytes")
        alignment = self._alignment(metadata)
        described = [self._tensor(alignment) for _ in range(tensors)]
        start = -(-self._at // alignment) * alignment
        return GgufFile(self._path, version, metadata, self._placed(described, start), self._mapped)

    def _refuse(self, what: str) -> NoReturn:
        raise GgufError(f"{self._path}: {what}")

    def _version(self) -> int:
        magic = bytes(self._mapped[:4])
        if magic != MAGIC:
            self._refuse(f"begins with {magic!r}; expected a GGUF file, which begins with {MAGIC!r}")
        self._at = 4
        version: int = self._number("<I", "the version")
        if version in VERSIONS:
            return version
        if int.from_bytes(version.to_bytes(4, "big"), "little") in VERSIONS:
            self._refuse("its numbers are big-endian; expected a little-endian GGUF file")
        self._refuse(f"GGUF version {version}; expected {' or '.join(map(str, VERSIONS))}")

    def _take(self, size: int, what: str) -> int:
        """The start of the next `size` bytes."""
        if size > self._end - self._at:
            self._refuse(
                f"{what} at byte {self._at}: expected {size} bytes, and the file ends after {self._end - self._at}: "
                "it is damaged or not complete"
            )
        start = self._at
        self._at += size
        return start

    def _number(self, layout: str, what: str) -> Any:
        return struct.unpack_from(layout, self._mapped, self._take(struct.calcsize(layout), what))[0]

    def _string(self, what: str, longest: int | None = None) -> str:
        length = self._number("<Q", what)
        start = self._take(length, what)
        if longest is not None and length > longest:
            self._refuse(f"{what} at byte {start - 8}: {length} bytes long; expected at most {longest}")
        try:
            return str(self._mapped[start : start + length], "utf-8")
        except UnicodeDecodeError:
            self._refuse(f"{what} at byte {start}: expected UTF-8")

    def _fits(self, count: int, least: int, most: int, what: str) -> None:
        if count > most or count * least > self._end - self._at:
            self._refuse(
                f"{count} {what} at byte {self._at}: expected at most {min(most, (self._end - self._at) // least)}, "
                f"since the file has {self._end} bytes"
            )

    def _value(self, key: str, kind: int) -> Any:
        if kind == STRING:
            return self._string(key, _LONGEST_STRING)
        if kind not in SCALARS:
            self._refuse(f"{key}: type {kind} at byte {self._at}; expected one of GGUF's, 0 to 12")
        value = self._number(SCALARS[kind][1], key)
        if kind != BOOL:
            return value
        if value > 1:
            self._refuse(f"{key}: a boolean of {value} at byte {self._at - 1}; expected 0 or 1")
        return bool(value)

    def _array(self, key: str) -> Any:
        kind = self._number("<I", f"the type of {key}")
        count = self._number("<Q", f"the length of {key}")
        if kind == STRING:
            self._fits(count, 8, _MOST_ENTRIES, f"strings of {key}")
            self._string_count += count
            if self._string_count > _MOST_STRINGS:
                self._refuse(f"{self._string_count} strings, with those of {key}; expected at most {_MOST_STRINGS}")
            return self._strings(key, count)
        if kind not in SCALARS:
            self._refuse(f"{key}: an array of type {kind} at byte {self._at}; expected strings, numbers or booleans")
        each = np.dtype(np.bool_) if kind == BOOL else np.dtype(SCALARS[kind][1])
        self._fits(count, each.itemsize, _MOST_ENTRIES, f"numbers of {key}")
        start = self._take(count * each.itemsize, key)
        if kind == BOOL and count and np.frombuffer(self._mapped, np.uint8, count, start).max() > 1:
            self._refuse(f"{key}: expected booleans of 0 or 1")
        return np.frombuffer(self._mapped, each, count, start)

    def _strings(self, key: str, count: int) -> list[str]:
        """What as many calls of `_string` return: vocabularies have hundreds of thousands."""
        mapped, end, length_at = self._mapped, self._end, struct.Struct("<Q").unpack_from
        texts, at = [], self._at
        try:
            for _ in range(count):
                (length,) = length_at(mapped, at)
                start = at + 8
                if length > end - start:
                    break
                at = start + length
                texts.append(str(mapped[start:at], "utf-8"))
        except (struct.error, UnicodeDecodeError):
            pass  # reading the one at `_at` says what is wrong with it
        if len(texts) == count:
            self._at = at
            return texts
        return [self._string(key) for _ in range(count)]

    def _alignment(self, metadata: Mapping[str, Any]) -> int:
        alignment = metadata.get(_ALIGNMENT, _DEFAULT_ALIGNMENT)
        if (
            not isinstance(alignment, int)
            or isinstance(alignment, bool)
            or not 8 <= alignment <= 1 << 20
            or alignment & (alignment - 1)
        ):
            self._refuse(f"{_ALIGNMENT} is {alignment!r}; expected a power of two from 8 to {1 << 20}")
        return alignment

    def _tensor(self, alignment: int) -> Tensor:
        """A tensor's description; its `start` still counts from where the tensors begin."""
        name = self._string("a tensor's name", _LONGEST_NAME)
        dimensions = self._number("<I", f"tensor {name}")
        if dimensions > _MOST_DIMENSIONS:
            self._refuse(f"tensor {name}: {dimensions} dimensions; expected at most {_MOST_DIMENSIONS}")
        shape = tuple(self._number("<Q", f"tensor {name}") for _ in range(dimensions))[::-1]
        kind = self._number("<I", f"tensor {name}")
        offset = self._number("<Q", f"tensor {name}")
        if kind not in TENSOR_TYPES:
            known = ", ".join(f"{number} ({each.name})" for number, each in TENSOR_TYPES.items())
            self._refuse(f"tensor {name}: type {kind} is unknown here; expected one of {known}")
        stored = TENSOR_TYPES[kind]
        if not all(shape) or math.prod(shape) > _MOST_NUMBERS:
            self._refuse(f"tensor {name}: shape {_shown(shape)}; expected 1 to 2^62 numbers")
        if (row := shape[-1] if shape else 1) % stored.numbers:
            self._refuse(
                f"tensor {name}: rows of {row} numbers; {stored.name} has blocks of {stored.numbers}, and a row is "
                "whole blocks"
            )
        if offset % alignment:
            self._refuse(f"tensor {name}: begins at {offset}; expected a multiple of the alignment, {alignment}")
        return Tensor(name, stored, shape, offset)

    def _placed(self, described: list[Tensor], start: int) -> dict[str, Tensor]:
        """The tensors by name, once they all lie within the file, and none on another."""
        placed: dict[str, Tensor] = {}
        before = 0, ""
        for tensor in sorted(described, key=lambda each: each.start):
            begins, ends = start + tensor.start, start + tensor.start + tensor.size
            if ends > self._end:
                self._refuse(
                    f"tensor {tensor.name}: {tensor.size} bytes from {begins} on, and the file has {self._end}: it is "
                    "damaged or not complete"
                )
            if begins < before[0]:
                self._refuse(f"tensors {before[1]} and {tensor.name} overlap at byte {begins}")
            if tensor.name in placed:
                self._refuse(f"there are two tensors {tensor.name!r}")
            placed[tensor.name] = Tensor(tensor.name, tensor.type, tensor.shape, begins)
            before = ends, tensor.name
        return {tensor.name: placed[tensor.name] for tensor in described}


def _shown(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"
