"""Weights in the order in which the kernels read them. Runs in the engine process, once.

A panel is 64 columns of a weight. Along k it is stored in 32-bit lanes, one for each column in turn: two bf16, one
fp32, or four 8-bit codes. With 4-bit codes, a byte holds those of two columns sixteen apart. A gated pair of weights
shares panels, 32 columns of each. A checkpoint's codes are not changed.

bf16 is packed in 12 bits, without loss, if few weights are exceptions that have to be listed (bf16_12bit.h has the layout):
a memory-bound step then takes three quarters of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from ..checkpoints.quantization import GROUP, Codes, Quantize, alike, quantized
from ..reading.recipe_parts import Linear, NotUnderstoodError
from .memory import Arena
from .pages import give_back
from .program.operations import Weights, pack, round_
from .thread_pool import Op, Pool, Step

PANEL: Final = 64
SAME, TWELVE, EIGHT, FOUR, EIGHT_BY_GROUP = range(5)
_STEP_BYTES: Final = 192  # of one step (128 weights) of a 12-bit panel
_HIGH_BYTES: Final = 16  # high bytes that a panel's table has
# The most weights that may be outliers for 12 bits to be worth it, as a share of one panel's weights, and of all.
_MAX_OUTLIERS_OF_PANEL: Final = 1 / 16
_MAX_OUTLIERS: Final = 1 / 128


@dataclass(frozen=True)
class Packed:
    """A weight as `linear` multiplies it; program.h has its `WeightFormat`. The bias is padded to whole panels.

    `order` is the order in which inputs are quantized for it, if it isn't their own.
    """

    n: int
    k: int
    weight_format: int
    weight: Tensor
    bias: Tensor | None
    weight2: Tensor | None = None
    weight3: Tensor | None = None
    order: Tensor | None = None

    @property
    def of_codes(self) -> bool:
        """Whether the weight is integer codes, so that activations are quantized, too."""
        return self.weight_format in (EIGHT, FOUR, EIGHT_BY_GROUP)

    @property
    def addresses(self) -> Weights:
        """For operations; the tensors must outlive these."""
        weight2, weight3 = (None if part is None else part.data_ptr() for part in (self.weight2, self.weight3))
        return Weights(self.weight_format, self.weight.data_ptr(), weight2, weight3)

    @property
    def bytes(self) -> int:
        """Bytes that a step reads."""
        return sum(each.nbytes for each in (self.weight, self.weight2, self.weight3) if each is not None)


class Rounded(NamedTuple):
    """A weight in 8 bits, and how far it is from the exact one.

    Attributes:
        weight_squares, error_squares: (groups, panels) fp32, of each group of inputs the greatest squared norm of a
            panel's columns, and of what they were changed by.
    """

    packed: Packed
    weight_squares: Tensor
    error_squares: Tensor


class Packer:
    """Packs weights.

    Args:
        dtype: bf16 or fp32, of weights that are not quantized.
        pool: does the work.
        memory: holds the packed weights.
    """

    def __init__(self, dtype: torch.dtype, pool: Pool, memory: Arena) -> None:
        self._dtype = dtype
        self._pool = pool
        self._memory = memory

    def pack(self, linears: list[Linear], quantize: Quantize | None) -> Packed:
        """Pack one linear, or the gate and up projections of a gated pair, which have the same shape.

        Raises:
            NotUnderstoodError: the input width can't be cut into 32-bit lanes.
        """
        n, k = linears[0].weight.shape
        if k * self._dtype.itemsize % 4:
            raise NotUnderstoodError(f"a weight of odd width {k}")
        bias = _bias([linear.bias for linear in linears], n)
        if codes := _codes(linears, quantize):
            return self._integers(n, k, codes, bias)
        weights = [linear.numbers.to(self._dtype).contiguous() for linear in linears]
        twelve = self._twelve(weights, bias) if self._dtype == torch.bfloat16 else None
        return twelve or Packed(n, k, SAME, self._lanes([weight.view(torch.int32) for weight in weights]), bias)

    def pack_rounded(self, linear: Linear, bias: Tensor | None) -> Rounded:
        """Pack a bf16 linear in 8 bits, with a bias that is padded already."""
        n, k = linear.weight.shape
        panels, groups = -(-n // PANEL), -(-k // GROUP)
        weight, packed = linear.numbers.contiguous(), self._memory.take(panels * PANEL * groups * GROUP)
        scales, squares, errors = torch.empty(panels * PANEL), *torch.empty(2, groups, panels)
        operation = round_(
            n=n, k=k, in_=weight.data_ptr(), out=packed.data_ptr(), scales=scales.data_ptr(),
            weight_squares=squares.data_ptr(), error_squares=errors.data_ptr(),
        )  # fmt: skip
        self._pool.run((Op * 1)(operation), 1, Step())
        return Rounded(Packed(n, k, EIGHT, packed, bias, scales), squares, errors)

    def _integers(self, n: int, k: int, codes: list[Codes], bias: Tensor | None) -> Packed:
        scales = _columns([each.scales for each in codes])
        if codes[0].bits == 8:
            weight = self._lanes([each.codes.view(torch.int32) for each in codes])
        else:
            weight = self._lanes([_halves(_columns([each.codes for each in codes])).view(torch.int32)], PANEL // 2)
        by_group = [each.zeros for each in codes if each.zeros is not None]
        if not by_group:
            return Packed(n, k, EIGHT, weight, bias, scales.view(-1))
        scales, zeros = (each.transpose(1, 2).contiguous() for each in (scales, _columns(by_group)))
        weight_format = FOUR if codes[0].bits == 4 else EIGHT_BY_GROUP
        return Packed(n, k, weight_format, weight, bias, scales, zeros, codes[0].order)

    def _twelve(self, weights: list[Tensor], bias: Tensor | None) -> Packed | None:
        """Pack (n, k) bf16, one or a gated pair, in 12 bits; None if too many weights would have to be outliers."""
        n, k = weights[0].shape
        panels = -(-n // (PANEL // len(weights)))
        parts = self._pool.parts(k // 2)
        packed = self._memory.take(panels * (k // 2) * _STEP_BYTES)
        tables = torch.empty(panels, _HIGH_BYTES, dtype=torch.uint8)
        counts = torch.empty(panels, parts, dtype=torch.int32)
        outliers = torch.empty(panels, int(PANEL * k * _MAX_OUTLIERS_OF_PANEL), dtype=torch.int32)
        operation = pack(
            n=n,
            k=k,
            in_=weights[0].data_ptr(),
            second=weights[1].data_ptr() if len(weights) > 1 else None,
            out=packed.data_ptr(),
            tables=tables.data_ptr(),
            lists=outliers.data_ptr(),
            room=outliers.shape[1],
            counts=counts.data_ptr(),
        )
        self._pool.run((Op * 1)(operation), 1, Step())
        if counts.amin() < 0 or counts.sum() > _MAX_OUTLIERS * n * k * len(weights):
            give_back(packed.data_ptr(), packed.data_ptr() + len(packed))
            return None
        # Offset of each part's list in the tensor that holds these offsets, then the lists.
        starts = torch.nn.functional.pad(counts.view(-1).cumsum(0), (1, 0)) + counts.numel() + 1
        held = [row[:count] for row, count in zip(outliers, counts.sum(1).tolist(), strict=True)]
        return Packed(n, k, TWELVE, packed, bias, tables, torch.cat([starts.int(), *held]))

    def _lanes(self, parts: list[Tensor], width: int = PANEL) -> Tensor:
        """Parts (n, lanes) of 32-bit lanes, side by side in panels of `width`: (panels, lanes, width)."""
        share = width // len(parts)
        n, lanes = parts[0].shape
        panels, whole, rest = -(-n // share), n // share, n % share
        made = self._memory.take(panels * lanes * width * 4).view(torch.int32).view(panels, lanes, len(parts), share)
        for i, part in enumerate(parts):
            made[:whole, :, i] = part[: whole * share].view(whole, share, lanes).transpose(1, 2)
            if rest:
                made[whole, :, i, :rest] = part[whole * share :].T
        return made


def _codes(linears: list[Linear], quantize: Quantize | None) -> list[Codes]:
    """Codes of the checkpoint, or those that weights are quantized to; none if weights are packed unquantized."""
    weights = [linear.weight for linear in linears]
    if stored := alike([None if isinstance(weight, Tensor) else weight.codes() for weight in weights]):
        return stored
    return [] if quantize is None else [quantized(linear.numbers, quantize) for linear in linears]


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


def _halves(codes: Tensor) -> Tensor:
    """4-bit codes (panels, 64, k) as bytes (panels * 32, k): of two vectors of columns, the second in the high bits."""
    panels, _, k = codes.shape
    vectors = codes.view(panels, 2, 2, 16, k)
    return (vectors[:, :, 0] | vectors[:, :, 1] << 4).reshape(panels * PANEL // 2, k)


def _bias(parts: list[Tensor | None], n: int) -> Tensor | None:
    if all(part is None for part in parts):
        return None
    return _columns([torch.zeros(n) if part is None else part.float() for part in parts]).view(-1)
