"""Weights in the order in which the kernels read them. Runs in the engine process, once.

A panel is 64 columns of a weight. Along k it is stored in 32-bit lanes, one for each column in turn: two bf16, one
fp32, or four 8-bit codes. With 4-bit codes, a byte holds those of two columns sixteen apart. A gated pair of weights
shares panels, 32 columns of each. A checkpoint's codes are not changed.

A GGUF file's blocks are packed as they are (block_codes.h has the layout); what is rounded to 4, 5 or 6 bits at load
becomes such blocks.

bf16 is packed in 12 bits, without loss, if few weights are exceptions that have to be listed (bf16_12bit.h has the
layout): a memory-bound step then takes three quarters of the time.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from ..checkpoints.blocks import BlockRows
from ..checkpoints.linears import Linear, RowOrigins
from ..checkpoints.quantization import GROUP, Codes, concatenable, quantized
from ..checkpoints.rounding import Rounding
from ..devices.pages import give_back
from ..reading.recipe.primitives import NotUnderstoodError
from .abi.enums import HIGH_BYTES, PANEL, STEP_BYTES, BlockScaling, BlockType, WeightFormat
from .abi.operations import OperationArray
from .abi.parts import PackedWeight
from .abi.sampling import PackBlocksOp, PackOp, RoundBlocksOp, RoundWeightsOp
from .abi.step_inputs import StepInputs
from .block_forms import FORMS, ROUNDED
from .memory import Arena
from .thread_pool import ThreadPool

log = logging.getLogger(__name__)

# The most weights that may be outliers for 12 bits to be worth it, as a share of one panel's weights, and of all.
_MAX_OUTLIERS_OF_PANEL: Final = 1 / 16
_MAX_OUTLIERS: Final = 1 / 128


@dataclass(frozen=True)
class Packed:
    """A weight as a LinearOp multiplies it.

    Attributes:
        n, k: columns and rows, as those of a LinearOp.
        panels, scales, zeros, tables, outliers: the arrays of `PackedWeight` that the format needs.
        bias: padded to whole panels.
        order: (k,) int32 in which inputs are quantized for it, if it isn't their own.
        origins: where the columns come from, of each linear that shares the panels, as far as it is known.
        scaling, zero: as `PackedWeight` has them.
    """

    n: int
    k: int
    format: WeightFormat
    panels: Tensor
    bias: Tensor | None
    scales: Tensor | None = None
    zeros: Tensor | None = None
    tables: Tensor | None = None
    outliers: Tensor | None = None
    order: Tensor | None = None
    origins: tuple[RowOrigins | None, ...] = ()
    scaling: BlockScaling = BlockScaling.HALVES
    zero: int = 0

    @property
    def of_codes(self) -> bool:
        """Whether the weight is integer codes, so that activations are quantized, too."""
        return self.format not in (WeightFormat.PLAIN, WeightFormat.TWELVE_BIT)

    @property
    def in_blocks(self) -> bool:
        """Whether these codes are in blocks, for which activations are quantized in their own way."""
        return self.format >= WeightFormat.BLOCKS_2

    @property
    def parts(self) -> dict[str, Tensor]:
        """Its parts by name, without the bias."""
        names = ("panels", "scales", "zeros", "tables", "outliers")
        return {name: part for name in names if (part := getattr(self, name)) is not None}

    @property
    def addresses(self) -> PackedWeight:
        """For operations; the tensors must outlive these."""
        addresses = {name: part.data_ptr() for name, part in self.parts.items()}
        return PackedWeight(format=self.format, scaling=self.scaling, zero=self.zero, **addresses)

    @property
    def bytes(self) -> int:
        """Bytes that a step reads."""
        return sum(part.nbytes for part in self.parts.values())


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

    def __init__(self, dtype: torch.dtype, pool: ThreadPool, memory: Arena) -> None:
        self._dtype = dtype
        self._pool = pool
        self._memory = memory

    def pack(self, linears: list[Linear], rounding: Rounding | None) -> Packed:
        """Pack one linear, or the gate and up projections of a gated pair, which have the same shape.

        Args:
            rounding: of weights that are not codes already; None: they stay what they are.

        Raises:
            NotUnderstoodError: the input width can't be cut into 32-bit lanes.
        """
        n, k = linears[0].weight.shape
        if k * self._dtype.itemsize % 4:
            raise NotUnderstoodError(f"a weight of odd width {k}")
        bias = _bias([linear.bias for linear in linears], n)
        if blocks := _blocks(linears):
            return self._of_blocks(n, k, blocks, bias)
        if codes := _stored_codes(linears):
            return self._integers(n, k, codes, bias)
        if rounding == "int8":
            return self._integers(n, k, [quantized(linear.numbers, rounding) for linear in linears], bias)
        if rounding is not None:
            return self._rounded_blocks(n, k, [linear.numbers for linear in linears], rounding, bias)
        weights = [linear.numbers.to(self._dtype).contiguous() for linear in linears]
        in_12_bits = self._twelve_bit(weights, bias) if self._dtype == torch.bfloat16 else None
        return in_12_bits or Packed(
            n, k, WeightFormat.PLAIN, self._lanes([weight.view(torch.int32) for weight in weights]), bias
        )

    def pack_rounded(self, linear: Linear, bias: Tensor | None) -> Rounded:
        """Pack a bf16 linear in 8 bits, with a bias that is padded already."""
        n, k = linear.weight.shape
        panels, groups = -(-n // PANEL), -(-k // GROUP)
        weight, packed = linear.numbers.contiguous(), self._memory.take(panels * PANEL * groups * GROUP)
        scales, squares, errors = torch.empty(panels * PANEL), *torch.empty(2, groups, panels)
        operation = RoundWeightsOp(
            n=n, k=k, in_=weight.data_ptr(), out=packed.data_ptr(), scales=scales.data_ptr(),
            weight_squares=squares.data_ptr(), error_squares=errors.data_ptr(),
        )  # fmt: skip
        self._pool.run(OperationArray([operation]), StepInputs())
        return Rounded(Packed(n, k, WeightFormat.INT8, packed, bias, scales), squares, errors)

    def _integers(self, n: int, k: int, codes: list[Codes], bias: Tensor | None) -> Packed:
        scales = _columns([each.scales for each in codes])
        if codes[0].bits == 8:
            weight = self._lanes([each.codes.view(torch.int32) for each in codes])
        else:
            weight = self._lanes([_halves(_columns([each.codes for each in codes])).view(torch.int32)], PANEL // 2)
        by_group = [each.zeros for each in codes if each.zeros is not None]
        if not by_group:
            return Packed(n, k, WeightFormat.INT8, weight, bias, scales.view(-1))
        scales, zeros = (each.transpose(1, 2).contiguous() for each in (scales, _columns(by_group)))
        weight_format = WeightFormat.INT4_BY_GROUP if codes[0].bits == 4 else WeightFormat.INT8_BY_GROUP
        return Packed(n, k, weight_format, weight, bias, scales, zeros, order=codes[0].order)

    def _of_blocks(self, n: int, k: int, rows: list[BlockRows], bias: Tensor | None) -> Packed:
        """Pack rows of blocks, or those of a gated pair, as they are."""
        form = FORMS[rows[0].type]
        panels = -(-n // (PANEL // len(rows)))
        packed = self._memory.take(panels * form.panel_bytes(k))
        halves = form.super_halves(k)
        scales = torch.zeros(panels * halves, dtype=torch.float16) if halves else None
        operation = PackBlocksOp(
            n=n,
            k=k,
            in_=rows[0].addresses.data_ptr(),
            second=rows[1].addresses.data_ptr() if len(rows) > 1 else None,
            type=BlockType[rows[0].type],
            out=packed.data_ptr(),
            scales=None if scales is None else scales.data_ptr(),
            format=form.format,
            scaling=form.scaling,
        )
        self._pool.run(OperationArray([operation]), StepInputs())
        table = torch.tensor(form.table, dtype=torch.int8) if form.table else None
        return Packed(
            n, k, form.format, packed, bias, scales=scales, tables=table, scaling=form.scaling, zero=form.zero
        )

    def _rounded_blocks(self, n: int, k: int, weights: list[Tensor], rounding: Rounding, bias: Tensor | None) -> Packed:
        """Round (n, k) weights, one or a gated pair, to blocks."""
        form = ROUNDED[rounding]
        bf16 = all(weight.dtype == torch.bfloat16 for weight in weights)
        weights = [(weight if bf16 else weight.float()).contiguous() for weight in weights]
        panels = -(-n // (PANEL // len(weights)))
        packed = self._memory.take(panels * form.panel_bytes(k))
        scales = torch.zeros(panels * form.super_halves(k), dtype=torch.float16)
        operation = RoundBlocksOp(
            n=n,
            k=k,
            in_=weights[0].data_ptr(),
            second=weights[1].data_ptr() if len(weights) > 1 else None,
            out=packed.data_ptr(),
            scales=scales.data_ptr(),
            format=form.format,
        )
        self._pool.run(OperationArray([operation]), StepInputs(), bf16=bf16)
        return Packed(n, k, form.format, packed, bias, scales=scales, scaling=form.scaling)

    def _twelve_bit(self, weights: list[Tensor], bias: Tensor | None) -> Packed | None:
        """Pack (n, k) bf16, one or a gated pair, in 12 bits; None if too many weights would have to be outliers."""
        n, k = weights[0].shape
        panels = -(-n // (PANEL // len(weights)))
        parts = self._pool.parts(k // 2)
        packed = self._memory.take(panels * (k // 2) * STEP_BYTES)
        tables = torch.empty(panels, HIGH_BYTES, dtype=torch.uint8)
        counts = torch.empty(panels, parts, dtype=torch.int32)
        outliers = torch.empty(panels, int(PANEL * k * _MAX_OUTLIERS_OF_PANEL), dtype=torch.int32)
        operation = PackOp(
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
        self._pool.run(OperationArray([operation]), StepInputs())
        if counts.amin() < 0 or counts.sum() > _MAX_OUTLIERS * n * k * len(weights):
            give_back(packed.data_ptr(), packed.data_ptr() + len(packed))
            return None
        # Offset of each part's list in the tensor that holds these offsets, then the lists.
        starts = torch.nn.functional.pad(counts.view(-1).cumsum(0), (1, 0)) + counts.numel() + 1
        held = [row[:count] for row, count in zip(outliers, counts.sum(1).tolist(), strict=True)]
        return Packed(
            n, k, WeightFormat.TWELVE_BIT, packed, bias, tables=tables, outliers=torch.cat([starts.int(), *held])
        )

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


def _stored_codes(linears: list[Linear]) -> list[Codes]:
    """Codes of the checkpoint; none if a weight has no such, or they don't fit together."""
    weights = [linear.weight for linear in linears]
    return concatenable([None if isinstance(weight, Tensor) else weight.codes() for weight in weights])


def _blocks(linears: list[Linear]) -> list[BlockRows]:
    """Rows of blocks that can share panels; none if a weight has no such, or they differ in type."""
    stored = [linear.weight for linear in linears if not isinstance(linear.weight, Tensor)]
    blocks = [each for weight in stored if (each := weight.blocks()) is not None]
    if len(blocks) == len(linears) and len({each.type for each in blocks}) == 1:
        return blocks
    if blocks:
        types = " and ".join(sorted({each.type for each in blocks}))
        n, k = stored[0].shape
        dtype = stored[0].dtype
        size = len(linears) * n * k * dtype.itemsize / 2**20
        name = str(dtype).removeprefix("torch.")
        log.info("weights of %s become %.1f MiB of %s: they share a product, and their types differ", types, size, name)
    return []


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
