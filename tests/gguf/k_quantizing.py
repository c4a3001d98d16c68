"""Numbers rounded to K types and IQ4, which gguf-py reads but does not write: each block to its greatest number.

llama.cpp searches for better scales; the layouts are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import gguf
import numpy as np
from gguf.quants import IQ4_NL

Floats = np.ndarray[Any, np.dtype[np.float32]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_SUPER: Final = 256
#: The numbers of IQ4's codes.
_TABLE: Final = np.array(IQ4_NL.kvalues, np.float32)


def quantize(numbers: Floats, of_type: gguf.GGMLQuantizationType) -> np.ndarray[Any, Any]:
    """Rows of numbers (n, k) as rows of the type's bytes, k a multiple of 256."""
    if of_type not in _WRITERS:
        made: np.ndarray[Any, Any] = gguf.quantize(numbers, of_type)
        return made
    blocks = numbers.reshape(-1, _SUPER)
    step = 1 << 14  # blocks at once
    parts = [_WRITERS[of_type](blocks[at : at + step]) for at in range(0, len(blocks), step)]
    return np.concatenate(parts).reshape(len(numbers), -1)


def _half(numbers: Floats) -> tuple[Bytes, Floats]:
    """(blocks, 1) as fp16: their bytes, and what they are then."""
    halves = numbers.astype("<f2")
    return halves.view(np.uint8).reshape(len(numbers), 2), halves.astype(np.float32)


def _codes(numbers: Floats, steps: Floats, lowest: int, highest: int) -> Any:
    """The nearest codes of numbers (blocks, parts, length); 0 where the step is."""
    inverse = np.divide(1, steps, out=np.zeros_like(steps), where=steps != 0)
    return np.clip(np.rint(numbers * inverse[:, :, None]), lowest, highest).astype(np.int16)


def _scaled(steps: Floats, most: int) -> tuple[Bytes, Any, Floats]:
    """Steps (blocks, parts) as an fp16 number of each block, times whole numbers up to `most`; and these products."""
    stored, unit = _half(steps.max(1, keepdims=True) / most)
    scales = _codes(steps[:, :, None], np.broadcast_to(unit, steps.shape), 0, most)[:, :, 0]
    return stored, scales, unit * scales


def _bits(codes: Any, shifts: tuple[int, ...]) -> Bytes:
    """Codes (blocks, groups, len(shifts), length) in the bits of as many bytes."""
    joined: Bytes = np.bitwise_or.reduce(codes << np.array(shifts)[:, None], axis=2).astype(np.uint8)
    return joined.reshape(len(codes), -1)


def _with_least(blocks: Floats, parts: int, most_scale: int, most: int) -> tuple[Bytes, Any, Bytes, Any, Any]:
    """What types with least numbers have: units and whole numbers, of steps and of least numbers, and the codes."""
    numbers = blocks.reshape(len(blocks), parts, -1)
    depth_unit, depths, depth = _scaled(np.maximum(-numbers.min(2), 0), most_scale)
    above = numbers + depth[:, :, None]
    unit, scales, steps = _scaled(np.maximum(above.max(2), 0) / most, most_scale)
    return unit, scales, depth_unit, depths, _codes(above, steps, 0, most)


def _q2_k(blocks: Floats) -> Bytes:
    unit, scales, depth_unit, depths, codes = _with_least(blocks, 16, 15, 3)
    both = (scales | depths << 4).astype(np.uint8)
    return np.concatenate([both, _bits(codes.reshape(-1, 2, 4, 32), (0, 2, 4, 6)), unit, depth_unit], 1)


def _six_bits(scales: Any, depths: Any) -> Bytes:
    """Eight numbers of each of two kinds, of 6 bits, in 12 bytes."""
    first, second = scales[:, :4] | scales[:, 4:] >> 4 << 6, depths[:, :4] | depths[:, 4:] >> 4 << 6
    return np.concatenate([first, second, scales[:, 4:] & 15 | (depths[:, 4:] & 15) << 4], 1).astype(np.uint8)


def _q4_k(blocks: Floats) -> Bytes:
    unit, scales, depth_unit, depths, codes = _with_least(blocks, 8, 63, 15)
    return np.concatenate([unit, depth_unit, _six_bits(scales, depths), _bits(codes.reshape(-1, 4, 2, 32), (0, 4))], 1)


def _q5_k(blocks: Floats) -> Bytes:
    unit, scales, depth_unit, depths, codes = _with_least(blocks, 8, 63, 31)
    high = _bits((codes >> 4)[:, None], tuple(range(8)))
    low = _bits((codes & 15).reshape(-1, 4, 2, 32), (0, 4))
    return np.concatenate([unit, depth_unit, _six_bits(scales, depths), high, low], 1)


def _q3_k(blocks: Floats) -> Bytes:
    numbers = blocks.reshape(-1, 16, 16)
    unit, scales, steps = _scaled(np.abs(numbers).max(2) / 3.5, 31)
    codes = (_codes(numbers, steps, -4, 3) + 4).reshape(-1, 8, 32)
    high = _bits((codes >> 2)[:, None], tuple(range(8)))
    low = _bits((codes & 3).reshape(-1, 2, 4, 32), (0, 2, 4, 6))
    raised = scales + 32
    below = _bits((raised & 15).reshape(-1, 1, 2, 8), (0, 4))
    above = _bits((raised >> 4).reshape(-1, 1, 4, 4), (0, 2, 4, 6))
    return np.concatenate([high, low, below, above, unit], 1)


def _q6_k(blocks: Floats) -> Bytes:
    numbers = blocks.reshape(-1, 16, 16)
    unit, scales, steps = _scaled(np.abs(numbers).max(2) / 31.5, 127)
    codes = (_codes(numbers, steps, -32, 31) + 32).reshape(-1, 2, 4, 32)
    low = _bits((codes & 15).reshape(-1, 2, 2, 64), (0, 4))
    return np.concatenate([low, _bits(codes >> 4, (0, 2, 4, 6)), scales.astype(np.uint8), unit], 1)


def _nearest(numbers: Floats) -> Any:
    """IQ4's codes of the nearest numbers of its table."""
    return np.searchsorted((_TABLE[1:] + _TABLE[:-1]) / 2, numbers)


def _iq4_xs(blocks: Floats) -> Bytes:
    numbers = blocks.reshape(-1, 8, 32)
    unit, scales, steps = _scaled(np.abs(numbers).max(2) / 113, 31)
    inverse = np.divide(1, steps, out=np.zeros_like(steps), where=steps != 0)
    codes = _nearest(numbers * inverse[:, :, None])
    raised = scales + 32
    above = np.bitwise_or.reduce((raised >> 4) << np.arange(0, 16, 2), axis=1).astype("<u2").view(np.uint8)
    below = _bits((raised & 15).reshape(-1, 4, 2, 1), (0, 4))
    return np.concatenate([unit, above.reshape(-1, 2), below, _bits(codes.reshape(-1, 8, 2, 16), (0, 4))], 1)


_WRITERS: Final[dict[gguf.GGMLQuantizationType, Callable[[Floats], Bytes]]] = {
    gguf.GGMLQuantizationType.Q2_K: _q2_k,
    gguf.GGMLQuantizationType.Q3_K: _q3_k,
    gguf.GGMLQuantizationType.Q4_K: _q4_k,
    gguf.GGMLQuantizationType.Q5_K: _q5_k,
    gguf.GGMLQuantizationType.Q6_K: _q6_k,
    gguf.GGMLQuantizationType.IQ4_XS: _iq4_xs,
}
#: The types that are written here.
WRITTEN: Final = frozenset(_WRITERS)
