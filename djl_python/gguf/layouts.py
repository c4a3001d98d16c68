"""Pieces that the layouts of several tensor types share. Runs where tensors are dequantized."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float32]]

#: Numbers of the codes of IQ4_NL and IQ4_XS, which are denser around zero.
_NON_LINEAR: Final = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32
)


def half(blocks: Bytes, at: int) -> Floats:
    """The fp16 number at byte `at` of each block, as a column of float32."""
    return blocks[:, at : at + 2].copy().view("<f2").astype(np.float32)


def nibbles(packed: Bytes) -> Bytes:
    """Codes of 4 bits: the low halves of all bytes, then the high ones."""
    return np.concatenate([packed & np.uint8(0x0F), packed >> np.uint8(4)], axis=-1)


def tabled(codes: Bytes) -> Floats:
    """The numbers of IQ4's codes."""
    return _NON_LINEAR[codes]
