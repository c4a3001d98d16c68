"""Weights as integer codes, and their rounding to 8 or 4 bits. Runs in the engine process, at load.

8 bits: one scale for each output column, codes -127 .. 127, stored plus 128. 4 bits: a scale and a zero point for each
column and group of `GROUP` inputs, codes 0 .. 15. The ends are the group's least and greatest numbers, or a little
inside of them where that makes the squared error less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

Quantize = Literal["int8", "int4"]

GROUP: Final = 64  # numbers along the input that share a scale; kGroup of integer_linear.h
_MOST: Final = 15  # greatest code of 4 bits
# Factors for the scale that covers all numbers, to see whether clipping some of them makes the error less.
_CUTS: Final = (1.0, 0.92, 0.84)
_WORKED_ON: Final = 1 << 17  # numbers at a time


@dataclass(frozen=True)
class Codes:
    """A quantized weight: (code - zero) * scale.

    Attributes:
        bits: 8 or 4.
        codes: (n, k) uint8, k a multiple of `GROUP` (the padding's value is 0).
        scales: (n,) fp32, for 8 bits only, or (n, k / GROUP) fp16.
        zeros: zero points (n, k / GROUP) uint8, where scales are per group; None: the middle code is the zero point.
        order: (inputs,) int32, the input that each column of codes belongs to; None: they are in order.
    """

    bits: int
    codes: Tensor
    scales: Tensor
    zeros: Tensor | None = None
    order: Tensor | None = None

    @property
    def zero(self) -> int:
        """The middle code."""
        return 1 << (self.bits - 1)

    def fits(self, other: Codes) -> bool:
        """Whether rows of both can be concatenated to one weight."""
        fits = self.bits == other.bits and self.scales.dim() == other.scales.dim()
        if self.order is None or other.order is None:
            return fits and self.order is other.order
        return fits and torch.equal(self.order, other.order)

    def values(self, width: int) -> Tensor:
        """Dequantized weight (n, width) fp32, in the inputs' order, without the padding."""
        n, padded = self.codes.shape
        scales = self.scales.float().view(n, -1, 1)
        groups = self.codes.float().view(n, scales.shape[1], -1)
        groups -= self.zero if self.zeros is None else self.zeros[:, :, None]
        values = groups.mul_(scales).view(n, padded)[:, :width]
        return values if self.order is None else values[:, self.order.argsort()]


def finer(quantize: Quantize | None) -> Quantize | None:
    """What weights are rounded to whose rounding costs most: 8 bits where others have 4."""
    return None if quantize is None else "int8"


@torch.inference_mode()
def quantized(weight: Tensor, quantize: Quantize) -> Codes:
    """Quantize a weight (n, k)."""
    n, k = weight.shape
    groups = -(-k // GROUP)
    codes = torch.empty(n, groups * GROUP, dtype=torch.uint8)
    if quantize == "int8":
        scales = torch.empty(n)
        for rows in row_blocks(n, k):
            codes[rows], scales[rows] = _to_int8(_padded(weight[rows]))
        return Codes(8, codes, scales)
    scales, zeros = torch.empty(n, groups, dtype=torch.float16), torch.empty(n, groups, dtype=torch.uint8)
    for rows in row_blocks(n, k):
        codes[rows], scales[rows], zeros[rows] = _to_int4(_padded(weight[rows]))
    return Codes(4, codes, scales, zeros)


def row_blocks(n: int, k: int) -> Iterator[slice]:
    """Slices of a weight's rows (n, k), each small enough to stay in the CPU's cache."""
    step = max(1, _WORKED_ON // k)
    return (slice(first, first + step) for first in range(0, n, step))


def concatenable(parts: Sequence[Codes | None]) -> list[Codes]:
    """The parts, if none is None and their rows can be concatenated to one weight; else an empty list."""
    known = [part for part in parts if part is not None]
    return known if len(known) == len(parts) and all(known[0].fits(part) for part in known) else []


def _padded(weight: Tensor) -> Tensor:
    return torch.nn.functional.pad(weight.float(), (0, -weight.shape[1] % GROUP))


def _to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    scales = weight.abs().amax(1) / 127
    codes = (weight / scales.clamp_min(1e-30)[:, None]).round_().add_(128)
    return codes.to(torch.uint8), scales


def _to_int4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    grouped = weight.view(len(weight), -1, GROUP)
    low, high = grouped.aminmax(dim=2)
    low, high = low.clamp_max(0), high.clamp_min(0)
    best: tuple[Tensor, Tensor, Tensor] | None = None
    least = torch.empty(0)
    for cut in _CUTS:
        scales = ((high - low) * (cut / _MOST)).half()
        steps = torch.where(scales < 1e-7, 1.0, scales.float())
        zeros = ((low + high) / steps).mul_(-0.5).add_(_MOST / 2).round_().clamp_(0, _MOST)
        codes = (grouped / steps[:, :, None]).add_(zeros[:, :, None]).round_().clamp_(0, _MOST)
        error = (codes - zeros[:, :, None]).mul_(steps[:, :, None]).sub_(grouped).square_().sum(2)
        found = codes, scales, zeros
        if best is None:
            best, least = found, error
            continue
        better = error < least
        least = torch.where(better, error, least)
        chosen = (better[:, :, None], better, better)
        best = tuple(torch.where(*each) for each in zip(chosen, found, best, strict=True))  # type: ignore[assignment]
    assert best is not None
    codes, scales, zeros = best
    return codes.to(torch.uint8).view(weight.shape), scales, zeros.to(torch.uint8)
