"""Weights in the order in which the kernels read them. Runs in the engine process, once.

A panel is 64 columns of a weight. Along k its numbers come in 32-bit lanes, one of each column in turn: two bf16, one
fp32, four codes of 8 bits; of 4 bits, a byte holds the codes of two columns sixteen apart. A gated pair of weights
shares panels, 32 columns of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ..quantization import Quantize, quantized
from .memory import on_huge_pages
from .recipe import Linear, NotUnderstoodError

PANEL: Final = 64
SAME, EIGHT, FOUR = range(3)


@dataclass(frozen=True)
class Packed:
    """A weight as `Op` describes it. `weight_format` is `WeightFormat` of program.h; bias is padded to whole panels."""

    n: int
    k: int
    weight_format: int
    weight: Tensor
    scales: Tensor | None
    bias: Tensor | None

    @property
    def bytes(self) -> int:
        """What a step reads."""
        return self.weight.nbytes + (0 if self.scales is None else self.scales.nbytes)


def pack(linears: list[Linear], dtype: torch.dtype, quantize: Quantize | None) -> Packed:
    """Pack one linear, or the gate and the other half of a gated pair, which have the same shape.

    Raises:
        NotUnderstoodError: a width that can't be cut into lanes.
    """
    n, k = linears[0].weight.shape
    if k * dtype.itemsize % 4:
        raise NotUnderstoodError(f"a weight of odd width {k}")
    bias = _bias([linear.bias for linear in linears], n)
    if quantize is None:
        weight = _lanes([linear.weight.to(dtype).contiguous().view(torch.int32) for linear in linears])
        return Packed(n, k, SAME, weight, None, bias)
    codes = [quantized(linear.weight, quantize) for linear in linears]
    scales = _columns([each.scales for each in codes])
    if quantize == "int8":
        weight = _lanes([each.codes.view(torch.int32) for each in codes])
        return Packed(n, k, EIGHT, weight, scales.view(-1), bias)
    weight = _lanes([_halves(_columns([each.codes for each in codes])).view(torch.int32)], PANEL // 2)
    return Packed(n, k, FOUR, weight, scales.transpose(1, 2).contiguous(), bias)


def _columns(parts: list[Tensor]) -> Tensor:
    """(n, ...) tensors as (panels, 64, ...), the parts side by side in each panel, padded with zeros."""
    share = PANEL // len(parts)
    n = len(parts[0])
    panels = -(-n // share)
    made = parts[0].new_zeros(panels, len(parts), share, *parts[0].shape[1:])
    for i, part in enumerate(parts):
        whole = n // share
        made[:whole, i] = part[: whole * share].view(whole, share, *part.shape[1:])
        if n % share:
            made[-1, i, : n % share] = part[whole * share :]
    return made.view(panels, PANEL, *parts[0].shape[1:])


def _lanes(parts: list[Tensor], width: int = PANEL) -> Tensor:
    """(n, lanes) of 32 bits, side by side in panels of `width`: (panels, lanes, width), on huge pages."""
    share = width // len(parts)
    n, lanes = parts[0].shape
    panels, whole, rest = -(-n // share), n // share, n % share
    made = on_huge_pages(panels * lanes * width * 4).view(torch.int32).view(panels, lanes, len(parts), share)
    for i, part in enumerate(parts):
        made[:whole, :, i] = part[: whole * share].view(whole, share, lanes).transpose(1, 2)
        if rest:
            made[whole, :, i, :rest] = part[whole * share :].T
    return made


def _halves(codes: Tensor) -> Tensor:
    """(panels, 64, k) codes below 16 as (panels * 32, k): of two vectors of columns, the second's above the first's."""
    panels, _, k = codes.shape
    vectors = codes.view(panels, 2, 2, 16, k)
    return (vectors[:, :, 0] | vectors[:, :, 1] << 4).reshape(panels * PANEL // 2, k)


def _bias(parts: list[Tensor | None], n: int) -> Tensor | None:
    if all(part is None for part in parts):
        return None
    return _columns([torch.zeros(n) if part is None else part.float() for part in parts]).view(-1)
