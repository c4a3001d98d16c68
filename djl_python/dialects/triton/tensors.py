"""KServe v2 tensors: values as JSON, or as bytes after the JSON (Triton's binary tensor data extension).

Runs in the worker. Binary values are little-endian, in row-major order; a BYTES element is its length in four bytes,
followed by its content.
"""

from __future__ import annotations

import itertools
import math
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...core.budgets import SEQUENCES
from ...core.errors import PayloadError
from ..shared.fields.sequence_limits import excess_sequences
from ..shared.request_body import shown
from .types import TEXT_INPUT, InputTensor

#: Header that says where the JSON ends and the binary data begins, in requests and in answers.
JSON_LENGTH: Final = "inference-header-content-length"
BINARY_SIZE: Final = "binary_data_size"

_FORMATS: Final = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
_LENGTH: Final = struct.Struct("<I")
_DIGITS: Final = re.compile(r"[0-9]{1,18}")  # longer numbers are too many bytes, and thousands of digits no int


@dataclass(frozen=True)
class Tensor:
    """A tensor. Its values are in row-major order; those of BYTES are decoded to str."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: tuple[Any, ...]


def split_body(body: bytes, json_length: str | None) -> tuple[bytes, bytes]:
    """(JSON, binary data) of a body.

    Raises:
        PayloadError: the header's value is not a length within the body.
    """
    if json_length is None:
        return body, b""
    if not _DIGITS.fullmatch(json_length) or int(json_length) > len(body):
        raise PayloadError(f"{JSON_LENGTH}: expected a length of at most {len(body)} bytes, got {shown(json_length)}")
    return body[: int(json_length)], body[int(json_length) :]


def read_tensors(inputs: Sequence[InputTensor], binary: bytes) -> dict[str, Tensor]:
    """The tensors of a request, by name. None has more elements than there can be prompts. Those with a
    `binary_data_size` take the binary data, in their order.

    Raises:
        PayloadError: with the path of the tensor, and what was expected.
    """
    tensors: dict[str, Tensor] = {}
    offset = 0
    for index, described in enumerate(inputs):
        field = f"inputs[{index}]"
        if described.name in tensors:
            raise PayloadError(f"{field}.name: there is another tensor {described.name}", f"{field}.name")
        expected = math.prod(described.shape)
        if described.name == TEXT_INPUT and (wrong := excess_sequences(expected)):
            raise PayloadError(f"{TEXT_INPUT}: {wrong}", TEXT_INPUT)
        if wrong := SEQUENCES._replace(of="elements").excess(expected):
            raise PayloadError(f"{field}.shape: {wrong}", f"{field}.shape")
        size = (described.parameters or {}).get(BINARY_SIZE)
        if size is None:
            values = _from_json(described, field, expected)
        else:
            values = _from_binary(described, _slice(binary, offset, size, field), field, expected)
            offset += int(size)
        if len(values) != expected:
            got = f"at least {len(values)}" if len(values) > expected else len(values)
            raise PayloadError(
                f"{field}: expected {expected} elements, as its shape {described.shape} says, got {got}", field
            )
        tensors[described.name] = Tensor(described.name, described.datatype, tuple(described.shape), values)
    if offset != len(binary):
        raise PayloadError(f"the request body: {len(binary) - offset} bytes of binary data belong to no input")
    return tensors


def encode_texts(texts: Sequence[str]) -> bytes:
    """The binary form of a BYTES tensor."""
    encoded = [text.encode() for text in texts]
    return b"".join(part for data in encoded for part in (_LENGTH.pack(len(data)), data))


def encode_floats(values: Sequence[float]) -> bytes:
    """The binary form of an FP32 tensor."""
    return struct.pack(f"<{len(values)}f", *values)


def _slice(binary: bytes, offset: int, size: Any, field: str) -> bytes:
    left = len(binary) - offset
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= left:
        where = f"{field}.parameters.{BINARY_SIZE}"
        raise PayloadError(f"{where}: expected an integer >= 0 and <= {left}, the bytes there are, got {size}", where)
    return binary[offset : offset + size]


# Both read at most one element more than expected, which shows that there are too many.


def _from_json(described: InputTensor, field: str, expected: int) -> tuple[Any, ...]:
    if described.data is None:
        what = "shared memory is not served" if "shared_memory_region" in (described.parameters or {}) else "required"
        raise PayloadError(f"{field}.data: {what}, expected an array of {described.datatype}", f"{field}.data")
    values = tuple(itertools.islice(_flat(described.data), expected + 1))
    for value in values:
        if not _fits(value, described.datatype):
            raise PayloadError(f"{field}.data: expected {described.datatype}, got {shown(value)}", f"{field}.data")
    return values


def _flat(data: list[Any]) -> Iterator[Any]:
    """The elements of nested lists. Without recursion: JSON may be nested deeper than Python's stack."""
    inside = [iter(data)]
    while inside:
        for item in inside[-1]:
            if isinstance(item, list):
                inside.append(iter(item))
                break
            yield item
        else:
            inside.pop()


def _fits(value: Any, datatype: str) -> bool:
    if datatype == "BYTES":
        return isinstance(value, str)
    if datatype == "BOOL" or isinstance(value, bool):
        return datatype == "BOOL" and isinstance(value, bool)
    if datatype.startswith("FP"):
        return isinstance(value, int | float)
    bits = int(datatype.lstrip("UINT"))
    low, high = (0, 2**bits) if datatype.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    return isinstance(value, int) and low <= value < high


def _from_binary(described: InputTensor, data: bytes, field: str, expected: int) -> tuple[Any, ...]:
    if described.datatype == "BYTES":
        return tuple(itertools.islice(_texts(data, field), expected + 1))
    layout = struct.Struct("<" + _FORMATS[described.datatype])
    if len(data) % layout.size:
        raise PayloadError(f"{field}: {len(data)} bytes are no whole number of {described.datatype}", field)
    return tuple(value for (value,) in itertools.islice(layout.iter_unpack(data), expected + 1))


def _texts(data: bytes, field: str) -> Iterator[str]:
    offset = 0
    while offset < len(data):
        start = offset + _LENGTH.size
        end = start + _LENGTH.unpack_from(data, offset)[0] if start <= len(data) else len(data) + 1
        if end > len(data):
            raise PayloadError(f"{field}: its binary data ends within an element", field)
        try:
            yield data[start:end].decode()
        except UnicodeDecodeError as exc:
            raise PayloadError(
                f"{field}: an element is not UTF-8 text: {exc.reason} at byte {exc.start}", field
            ) from exc
        offset = end
