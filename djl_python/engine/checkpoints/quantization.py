"""Weights as integer codes, and their rounding to 8 to 4 bits. Runs in the engine process, at load.

8 bits: one scale for each output column, codes -127 .. 127, stored plus 128. 6, 5 and 4 bits: a step and a least
number for each column and block of `BLOCK` inputs, codes 0 .. 63, 31 or 15; the steps of every `SHARING` blocks are
8-bit integers times one fp16 number, and so are the least numbers. kernels/linear/round_blocks.h rounds to the same;
this here is what torch's kernels get.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from .rounding import Rounding

GROUP: Final = 64  # numbers along the input that share a scale in checkpoints; kGroup of integer_linear.h
BLOCK: Final = 32  # those that share a step and a least number; kBlock of block_rows.h
SHARING: Final = 8  # blocks that share fp16 numbers; kSuperBlocks of block_codes.h
_MOST_STEPS: Final = 255  # the greatest integer that these are multiplied with
_TINIEST: Final = 2.0**-24  # the least fp16 number
# The parts of a block's range that first guesses cover; and how often step and least number are fitted to the codes.
_CUTS: Final = (1.0, 0.88)
_FITS: Final = 2
_WORKED_ON: Final = 1 << 17  # numbers at a time


@dataclass(frozen=True)
class Codes:
    """A quantized weight: (code - zero) * scale.

    Attributes:
        bits: 8, 6, 5 or 4.
        codes: (n, k) uint8, k a multiple of `GROUP` (the padding's value is 0).
        scales: (n,) fp32, for 8 bits only, or (n, groups of k) fp16 or fp32.
        zeros: zero points (n, groups), where scales are per group: uint8 in checkpoints, fp32 and not whole where this
            module rounds; None: the middle code is the zero point.
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


@torch.inference_mode()
def quantized(weight: Tensor, rounding: Rounding) -> Codes:
    """Quantize a weight (n, k)."""
    n, k = weight.shape
    groups = -(-k // GROUP)
    codes = torch.empty(n, groups * GROUP, dtype=torch.uint8)
    if rounding == "int8":
        scales = torch.empty(n)
        for rows in row_blocks(n, k):
            codes[rows], scales[rows] = _to_int8(_padded(weight[rows], GROUP))
        return Codes(8, codes, scales)
    bits = int(rounding.removeprefix("int"))
    blocks = groups * GROUP // BLOCK
    scales, zeros = torch.empty(2, n, blocks)
    for rows in row_blocks(n, k):
        made, steps, depths = _to_blocks(_padded(weight[rows], BLOCK * SHARING), bits)
        codes[rows] = made[:, : codes.shape[1]]
        scales[rows], zeros[rows] = steps[:, :blocks], (depths / steps.clamp_min(_TINIEST))[:, :blocks]
    return Codes(bits, codes, scales, zeros)


def row_blocks(n: int, k: int) -> Iterator[slice]:
    """Slices of a weight's rows (n, k), each small enough to stay in the CPU's cache."""
    step = max(1, _WORKED_ON // k)
    return (slice(first, first + step) for first in range(0, n, step))


def concatenable(parts: Sequence[Codes | None]) -> list[Codes]:
    """The parts, if none is None and their rows can be concatenated to one weight; else an empty list."""
    known = [part for part in parts if part is not None]
    return known if len(known) == len(parts) and all(known[0].fits(part) for part in known) else []


def _padded(weight: Tensor, whole: int) -> Tensor:
    return torch.nn.functional.pad(weight.float(), (0, -weight.shape[1] % whole))


def _to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    scales = weight.abs().amax(1) / 127
    codes = (weight / scales.clamp_min(1e-30)[:, None]).round_().add_(128)
    return codes.to(torch.uint8), scales


def _to_blocks(weight: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes (n, k) of weights, and (n, k / BLOCK) steps, and depths: what their least numbers are below 0."""
    most = (1 << bits) - 1
    blocks = weight.view(len(weight), -1, BLOCK)
    exact = _fitted(blocks, most)
    steps, depths = (_in_shared_units(each, fewest) for each, fewest in zip(exact, (1, 0), strict=True))
    return _rounded(blocks, steps, depths, most).to(torch.uint8).view(weight.shape), steps, depths


def _rounded(blocks: Tensor, steps: Tensor, depths: Tensor, most: int) -> Tensor:
    inverse = torch.where(steps > 0, 1 / steps, 0.0)
    return (blocks + depths[:, :, None]).mul_(inverse[:, :, None]).round_().clamp_(0, most)


def _fitted(blocks: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Steps and depths of blocks (n, blocks, BLOCK): those of nearly the least squared error."""
    low, high = blocks.aminmax(dim=2)
    low, high = low.clamp_max(0).neg(), high.clamp_min(0)
    sums = blocks.sum(2)
    best = torch.full_like(low, torch.nan), torch.zeros_like(low)  # where a number is none, so is the step
    least = torch.full_like(low, torch.inf)
    for cut in _CUTS:
        steps = (high + low) * (cut / most)
        depths = (low - (high + low) * ((1 - cut) / 2)).clamp_min(0)
        for _ in range(_FITS):
            codes = _rounded(blocks, steps, depths, most)
            total, squares, products = codes.sum(2), codes.square().sum(2), (codes * blocks).sum(2)
            determinant = BLOCK * squares - total.square()
            fits, divisor = determinant >= 0.5, determinant.clamp_min(0.5)
            lower = (total * products - squares * sums) / divisor
            above = products / squares.clamp_min(1)  # through 0, where all numbers are above it
            fitted = torch.where(lower < 0, above, (BLOCK * products - total * sums) / divisor)
            steps, depths = torch.where(fits, fitted, steps), torch.where(fits, lower.clamp_min(0), depths)
        codes = _rounded(blocks, steps, depths, most)
        error = (codes.mul_(steps[:, :, None]) - depths[:, :, None]).sub_(blocks).square_().sum(2)
        better = error < least
        least = torch.where(better, error, least)
        best = torch.where(better, steps, best[0]), torch.where(better, depths, best[1])
    return best


def _in_shared_units(numbers: Tensor, fewest: int) -> Tensor:
    """Numbers (n, blocks), not negative, as integers times an fp16 number of each `SHARING` blocks."""
    shared = numbers.view(len(numbers), -1, SHARING)
    wanted = shared.amax(2, keepdim=True) / _MOST_STEPS
    units = wanted.half()
    units = torch.where(units < wanted, (units.view(torch.int16) + 1).view(torch.float16), units).float()  # not below
    whole = (shared / units.clamp_min(_TINIEST)).round_().clamp_(fewest, _MOST_STEPS)
    return (whole * units).view(numbers.shape)
