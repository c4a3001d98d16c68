"""Turns a tensor's bytes into float32, with numpy. Runs in the engine process, at load, and in tests.

A block has some 32 or 256 numbers: small codes, and the scales that give them back their size. Those of 256 numbers
("K") have sub-blocks, whose scales are themselves codes; `k_blocks` has them. The layouts are ggml's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from . import k_blocks
from .errors import GgufError
from .layouts import Bytes, Floats, half, nibbles, tabled
from .types import TensorType

#: Numbers of MXFP4's codes, doubled: a block's scale is halved instead.
_FP4: Final = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def _f32(stored: Bytes) -> Floats:
    return stored.view("<f4").astype(np.float32)  # a copy: torch takes no arrays that can't be written


def _f64(stored: Bytes) -> Floats:
    return stored.view("<f8").astype(np.float32)


def _f16(stored: Bytes) -> Floats:
    return stored.view("<f2").astype(np.float32)


def _bf16(stored: Bytes) -> Floats:
    return (stored.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(blocks: Bytes) -> Floats:
    return half(blocks, 0) * blocks[:, 2:].view(np.int8)


def _q4_0(blocks: Bytes) -> Floats:
    return half(blocks, 0) * (nibbles(blocks[:, 2:]).astype(np.int8) - np.int8(8))


def _q4_1(blocks: Bytes) -> Floats:
    return half(blocks, 0) * nibbles(blocks[:, 4:]) + half(blocks, 2)


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """The highest bit of each of 32 codes, in place: a number of 32 bits has them."""
    bits = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
    return bits << np.uint8(4)


def _q5_0(blocks: Bytes) -> Floats:
    codes = nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return half(blocks, 0) * (codes.astype(np.int8) - np.int8(16))


def _q5_1(blocks: Bytes) -> Floats:
    codes = nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return half(blocks, 0) * codes + half(blocks, 2)


def _iq4_nl(blocks: Bytes) -> Floats:
    return half(blocks, 0) * tabled(nibbles(blocks[:, 2:]))


def _mxfp4(blocks: Bytes) -> Floats:
    exponents = blocks[:, :1].astype(np.uint32)
    bits = np.where(exponents < 2, np.uint32(0x00200000) << np.minimum(exponents, 1), (exponents - 1) << 23)
    scales: Floats = bits.astype(np.uint32).view(np.float32)
    return scales * _FP4[nibbles(blocks[:, 1:])]


#: By name of the type: from its blocks, a row each (from all bytes of plain numbers), to as many rows of numbers.
_TYPES: Final[dict[str, Callable[[Bytes], Floats]]] = {
    "F32": _f32,
    "F64": _f64,
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "IQ4_NL": _iq4_nl,
    "MXFP4": _mxfp4,
    "Q2_K": k_blocks.q2_k,
    "Q3_K": k_blocks.q3_k,
    "Q4_K": k_blocks.q4_k,
    "Q5_K": k_blocks.q5_k,
    "Q6_K": k_blocks.q6_k,
    "IQ4_XS": k_blocks.iq4_xs,
}
#: Names of the types that are read here.
READABLE: Final = frozenset(_TYPES)


def dequantize(stored: np.ndarray[Any, np.dtype[np.uint8]], kind: TensorType) -> Floats:
    """The numbers of whole blocks, as one row of float32.

    Raises:
        GgufError: this type is not read here.
    """
    if kind.name not in _TYPES:
        raise GgufError(f"tensors of type {kind.name} are not read here; expected {', '.join(_TYPES)}")
    blocks = stored if kind.numbers == 1 else stored.reshape(-1, kind.size)
    return _TYPES[kind.name](blocks).reshape(-1)
