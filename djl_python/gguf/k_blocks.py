"""Blocks of 256 numbers with sub-blocks, whose scales are codes too. Runs where tensors are dequantized.

Each function takes blocks, a row each, and returns as many rows of 256 numbers.
"""

from __future__ import annotations

import numpy as np

from .layouts import Bytes, Floats, half, nibbles, tabled

_LOW = np.uint8(0x0F)


def _shifted(packed: Bytes, shifts: tuple[int, ...]) -> Bytes:
    """`packed` (blocks, n) shifted right by each of `shifts`: (blocks, len(shifts), n)."""
    return packed[:, None, :] >> np.array(shifts, np.uint8)[None, :, None]


def q2_k(blocks: Bytes) -> Floats:
    """16 bytes of scales, 64 of codes, and two fp16 numbers."""
    count = len(blocks)
    scales, packed = blocks[:, :16], blocks[:, 16:80].reshape(count * 2, 32)
    codes = (_shifted(packed, (0, 2, 4, 6)) & np.uint8(3)).reshape(count, 16, 16)
    steps = half(blocks, 80) * (scales & _LOW)
    least = half(blocks, 82) * (scales >> np.uint8(4))
    made: Floats = steps[:, :, None] * codes - least[:, :, None]
    return made.reshape(count, 256)


def q3_k(blocks: Bytes) -> Floats:
    """32 bytes of highest bits, 64 of codes, 12 of scales, and one fp16 number."""
    count = len(blocks)
    low = (_shifted(blocks[:, 32:96].reshape(count * 2, 32), (0, 2, 4, 6)) & np.uint8(3)).reshape(count, 8, 32)
    high = _shifted(blocks[:, :32], tuple(range(8))) & np.uint8(1)
    codes = (low | high << np.uint8(2)).astype(np.int8) - np.int8(4)
    upper = (_shifted(blocks[:, 104:108], (0, 2, 4, 6)) & np.uint8(3)).reshape(count, 16)
    scales = (nibbles(blocks[:, 96:104]) | upper << np.uint8(4)).astype(np.int8) - np.int8(32)
    steps = half(blocks, 108) * scales
    made: Floats = steps[:, :, None] * codes.reshape(count, 16, 16)
    return made.reshape(count, 256)


def _scales_and_least(packed: Bytes) -> tuple[Bytes, Bytes]:
    """8 scales and 8 minima of 6 bits each, out of 12 bytes."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:12]
    six = np.uint8(0x3F)
    scales = np.concatenate([first & six, rest & _LOW | (first >> np.uint8(6)) << np.uint8(4)], axis=1)
    least = np.concatenate([second & six, rest >> np.uint8(4) | (second >> np.uint8(6)) << np.uint8(4)], axis=1)
    return scales, least


def _of_eight(blocks: Bytes, codes: Bytes) -> Floats:
    """Numbers of 8 sub-blocks, whose scales and minima begin the block (Q4_K, Q5_K)."""
    scales, least = _scales_and_least(blocks[:, 4:16])
    steps, floor = half(blocks, 0) * scales, half(blocks, 2) * least
    made: Floats = steps[:, :, None] * codes - floor[:, :, None]
    return made.reshape(len(blocks), 256)


def q4_k(blocks: Bytes) -> Floats:
    """Two fp16 numbers, 12 bytes of scales, 128 of codes."""
    return _of_eight(blocks, nibbles(blocks[:, 16:144].reshape(-1, 4, 32)).reshape(-1, 8, 32))


def q5_k(blocks: Bytes) -> Floats:
    """Two fp16 numbers, 12 bytes of scales, 32 of highest bits, 128 of codes."""
    low = nibbles(blocks[:, 48:176].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    high = _shifted(blocks[:, 16:48], tuple(range(8))) & np.uint8(1)
    return _of_eight(blocks, low | high << np.uint8(4))


def q6_k(blocks: Bytes) -> Floats:
    """128 bytes of low bits, 64 of high ones, 16 scales, and one fp16 number."""
    count = len(blocks)
    low = nibbles(blocks[:, :128].reshape(count, 2, 64)).reshape(count, 8, 32)
    high = (_shifted(blocks[:, 128:192].reshape(count * 2, 32), (0, 2, 4, 6)) & np.uint8(3)).reshape(count, 8, 32)
    codes = (low | high << np.uint8(4)).astype(np.int8) - np.int8(32)
    steps = half(blocks, 208) * blocks[:, 192:208].view(np.int8)
    made: Floats = steps[:, :, None] * codes.reshape(count, 16, 16)
    return made.reshape(count, 256)


def iq4_xs(blocks: Bytes) -> Floats:
    """One fp16 number, 2 bytes and 4 bytes of scales, 128 of codes, which are looked up in a table."""
    count = len(blocks)
    high = blocks[:, 2:4].copy().view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & np.uint16(3)
    low = np.stack([blocks[:, 4:8] & _LOW, blocks[:, 4:8] >> np.uint8(4)], axis=-1).reshape(count, 8)
    scales = (low | high.astype(np.uint8) << np.uint8(4)).astype(np.int8) - np.int8(32)
    steps = half(blocks, 0) * scales
    made: Floats = steps[:, :, None] * tabled(nibbles(blocks[:, 8:].reshape(count, 8, 16)))
    return made.reshape(count, 256)
