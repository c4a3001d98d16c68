"""Weights rounded to 8 or 4 bits. Runs in the engine process, once.

8 bits: one scale for each output column, codes -127 .. 127. 4 bits: one scale for each column and group of `GROUP`
inputs, codes -8 .. 7, the group's greatest number exactly at an end (or a little beyond it, where that makes the
squared error less).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

Quantize = Literal["int8", "int4"]

GROUP: Final = 64  # numbers along the input that share a scale; kGroup of quantized.h
# What the scale that covers the greatest number is multiplied with, to see whether cutting it off is better.
_CUTS: Final = (1.0, 0.92, 0.84)
# Rows that are worked on at a time stay in the processor's cache.
_WORKED_ON: Final = 1 << 17


@dataclass(frozen=True)
class Codes:
    """A quantized weight: (code - zero) * scale.

    Attributes:
        bits: 8 or 4.
        codes: (n, k) uint8, k a multiple of `GROUP` (the padding is `zero`).
        scales: (n,) fp32 for 8 bits, (n, k / GROUP) fp16 for 4.
    """

    bits: int
    codes: Tensor
    scales: Tensor

    @property
    def zero(self) -> int:
        """The code of 0."""
        return 1 << (self.bits - 1)

    def values(self, width: int) -> Tensor:
        """(n, width) fp32: what the codes stand for, without the padding."""
        n, padded = self.codes.shape
        scales = self.scales.float().view(n, -1, 1)
        groups = self.codes.float().sub_(self.zero).view(n, scales.shape[1], -1)
        return groups.mul_(scales).view(n, padded)[:, :width]


@torch.inference_mode()
def quantized(weight: Tensor, quantize: Quantize) -> Codes:
    """Round a weight (n, k)."""
    n, k = weight.shape
    groups = -(-k // GROUP)
    bits, round_rows = (8, _eight) if quantize == "int8" else (4, _four)
    codes = torch.full((n, groups * GROUP), 1 << (bits - 1), dtype=torch.uint8)
    scales = torch.empty(n) if bits == 8 else torch.empty(n, groups, dtype=torch.float16)
    step = max(1, _WORKED_ON // k)
    for first in range(0, n, step):
        rows = slice(first, first + step)
        codes[rows, :k], scales[rows] = round_rows(weight[rows].float())
    return Codes(bits, codes, scales)


def _eight(weight: Tensor) -> tuple[Tensor, Tensor]:
    scales = weight.abs().amax(1) / 127
    codes = (weight / scales.clamp_min(1e-30)[:, None]).round_().add_(128)
    return codes.to(torch.uint8), scales


def _four(weight: Tensor) -> tuple[Tensor, Tensor]:
    n, k = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -k % GROUP)).view(n, -1, GROUP)
    low, high = padded.aminmax(dim=2)
    extreme = torch.where(-low > high, low, high)
    best_codes = best_scales = best_error = None
    for cut in _CUTS:
        scales = (extreme * (cut / -8)).half()
        divisor = scales.float()
        divisor = torch.where(divisor.abs() < 1e-7, 1.0, divisor)[:, :, None]
        codes = (padded / divisor).round_().clamp_(-8, 7)
        error = (codes * divisor - padded).square_().sum(2)
        if best_codes is None or best_scales is None or best_error is None:
            best_codes, best_scales, best_error = codes, scales, error
            continue
        better = error < best_error
        best_codes = torch.where(better[:, :, None], codes, best_codes)
        best_scales = torch.where(better, scales, best_scales)
        best_error = torch.where(better, error, best_error)
    assert best_codes is not None and best_scales is not None
    return (best_codes + 8).to(torch.uint8).view(n, -1)[:, :k], best_scales
