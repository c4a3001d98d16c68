"""The operations of a step, in order, and the memory that they point to. Runs in the engine process."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from ....checkpoints.expert_stacks import ConcatenatedExperts, ExpertStack
from ....checkpoints.linears import Linear, RowOrigins
from ....checkpoints.rounding import Quantize, Role, rounding_of
from ....checkpoints.weights import Weight, tensors_of
from ....reading.recipe.primitives import ExpertLinears, Norm, Stacked
from ....runner.file_mapping import release_pages
from ...abi.decoder import EmbedOp, GatherOp, GroupNormOp, LinearOp, NormOp, QuantizeOp
from ...abi.enums import PANEL, Mode, NormKind
from ...abi.parts import Epilogue, Output, PackedWeight, Routing
from ...abi.structures import Operation
from ...memory import Arena
from ...packing import Packed, Packer, Rounded
from ...thread_pool import ThreadPool

_LINE: Final = 64  # bytes of a cache line
#: Rows whose size is a multiple of this would share a few lines of the L1 cache.
L1_WAY_BYTES: Final = 4096


@dataclass(frozen=True)
class Rows:
    """A matrix that linears read: address of its first row, and elements from one row to the next."""

    at: int
    stride: int


@dataclass(frozen=True)
class Adaptable:
    """An operation that LoRA adapters can change.

    Attributes:
        given: the rows that it multiplies, before any quantization; None: it reads token ids.
        origins: where its columns come from, of each linear that shares the panels.
        scale: what an adapter's embeddings are multiplied by.
    """

    operation: LinearOp | EmbedOp
    given: Rows | None
    origins: tuple[RowOrigins, ...]
    scale: float = 1.0


class ProgramBuilder:
    """Collects the operations that `Program` runs.

    Args:
        memory: for weights and activations.
        max_tokens: maximum tokens of a step.

    Attributes:
        operations: those so far.
        adaptable: those of them that adapters can change.
        hidden: address of the residual stream, fp32.
        normed: the stream after a norm, which most linears read.
        branch: address of a branch's result, fp32, that goes through a norm before it is added to the stream.
        inputs: (address, columns) of the per-layer token inputs, fp32, if there are any.
        late_from: index of the first operation that is only needed for logits.
        weight_bytes: bytes of weight matrices that a step reads.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        quantize: Quantize | None,
        pool: ThreadPool,
        memory: Arena,
        width: int,
        max_tokens: int,
    ) -> None:
        self.dtype = dtype
        self.operations: list[Operation] = []
        self.adaptable: list[Adaptable] = []
        self.late_from = 0
        self.weight_bytes = 0
        self._quantize = quantize
        self._memory = memory
        self._packer = Packer(dtype, pool, memory)
        self._pool = pool
        self._max_tokens = max_tokens
        self._late = False
        self._kept: list[Any] = []  # keeps alive what the operations point to
        self._tables: dict[int, tuple[Tensor, Tensor]] = {}  # by id: the given table, and its contiguous form
        self._buffers: dict[tuple[str, int, torch.dtype], int] = {}
        self.width = width
        self.hidden = self.buffer("hidden", width, torch.float32)
        self.normed = self.rows("normed", width)
        self.branch = self.buffer("branch", width, torch.float32)
        self.inputs: tuple[int, int] | None = None

    # -------------------------------------------------------------------------------- operations

    def add(self, operation: Operation) -> None:
        operation.late = int(self._late)
        self.operations.append(operation)

    def add_linear(self, packed: Packed, given: Rows, output: Output, epilogue: Epilogue | None = None) -> None:
        self.weight_bytes += packed.bytes
        product = self.add_product(packed, self.quantized_for(packed, given), output, epilogue)
        origins = tuple(each for each in packed.origins if each is not None)
        if origins and len(origins) == len(packed.origins):
            self.adaptable.append(Adaptable(product, given, origins))

    def project(self, what: str, stacked: Stacked, given: Rows) -> int:
        """Add a product into the buffer `what`, whose rows are contiguous; returns its address."""
        made = self.buffer(what, stacked.columns, self.dtype)
        self.add_stacked(stacked, given, Output(out=made))
        return made

    def add_stacked(self, stacked: Stacked, given: Rows, output: Output) -> None:
        """Add linears of the same input, whose rows are contiguous: one product, or several if their blocks differ."""
        parts, columns, out = _alike(stacked), stacked.columns, output.out
        for part in parts:
            packed = self.pack(part.joined(), of=part.parts)
            pitch = columns if len(parts) > 1 else 0
            self.add_linear(packed, given, Output(out=out, pitch=pitch, mode=output.mode))
            assert out is not None
            out += packed.n * (self.dtype.itemsize if output.mode == Mode.STORE else 4)

    def add_norm_of_rows(self, norm: Norm, rows: int, columns: int, parts: int = 1) -> None:
        """Norm each of a row's `parts` equal parts, in place."""
        self.add(
            GroupNormOp(
                n=columns, group=columns // parts, norm=NormKind.named(norm.kind), eps=norm.eps, in_=rows, out=rows,
                weight=self.keep(norm.weight.contiguous()),
            )
        )  # fmt: skip

    def add_side_by_side(self, weights: Tensor, given: Rows, output: Output, apart: int) -> None:
        """Products of parts of a row with unquantized weights, (products, out, in), whose results are `apart`."""
        products, n, _ = weights.shape
        packed = replace(self.pack_exactly(Linear(_below_each_other(weights, -n % PANEL), None)), n=n)
        self.weight_bytes += packed.bytes
        self.add(
            LinearOp(
                n=n, k=packed.k, weight=self.weight(packed), in_=given.at, stride=given.stride, output=output,
                side_by_side=products, apart=apart,
            )
        )  # fmt: skip

    def remove_from(self, first: int) -> list[Operation]:
        """Remove the operations from this index on, and return them."""
        taken = self.operations[first:]
        del self.operations[first:]
        return taken

    def quantized_for(self, packed: Packed, given: Rows, rows_per_token: int = 1) -> Rows:
        """The rows that a product with these weights reads: the given ones, or those quantized to integers."""
        if not packed.of_codes:
            return given
        width = self._pool.codes_bytes(packed.k, packed.in_blocks)
        rounded = self.buffer("codes", rows_per_token * width, torch.int8)
        order = None if packed.order is None else self.keep(packed.order)
        operation = QuantizeOp(
            k=packed.k, in_=given.at, stride=given.stride, out=rounded, order=order, rows_per_token=rows_per_token,
            for_blocks=packed.in_blocks,
        )  # fmt: skip
        if not self._has_just_added(operation):
            self.add(operation)
        return Rows(rounded, width)

    def _has_just_added(self, operation: QuantizeOp) -> bool:
        """Whether the last operations are this one and products that read its result."""
        for last in reversed(self.operations):
            if isinstance(last, QuantizeOp):
                operation.late = int(self._late)
                return bytes(last) == bytes(operation)
            if not isinstance(last, LinearOp) or last.in_ != operation.out or last.output.out == operation.in_:
                return False
        return False

    def add_product(
        self,
        packed: Packed,
        given: Rows,
        output: Output,
        epilogue: Epilogue | None = None,
        routing: Routing | None = None,
    ) -> LinearOp:
        """Add a product; `given` has the format that the weights need (`quantized_for`)."""
        bias = None if packed.bias is None else self.keep(packed.bias)
        product = LinearOp(
            n=packed.n, k=packed.k, weight=self.weight(packed), in_=given.at, stride=given.stride, bias=bias,
            output=output, epilogue=epilogue or Epilogue(), routing=routing or Routing(),
        )  # fmt: skip
        self.add(product)
        return product

    def weight(self, packed: Packed) -> PackedWeight:
        """A weight for operations, which is kept for as long as these."""
        self._kept.append(packed)
        return packed.addresses

    def add_norm(
        self, norm: Norm | None, given: int, out: int, mode: Mode = Mode.STORE, pitch: int = 0, scale: float = 1.0
    ) -> None:
        weight = bias = None
        if norm is not None:
            weight = self.keep(norm.weight.contiguous())
            bias = None if norm.bias is None else self.keep(norm.bias.contiguous())
        kind, eps = (NormKind.COPY, 0.0) if norm is None else (NormKind.named(norm.kind), norm.eps)
        self.add(
            NormOp(
                n=self.width, in_=given, out=out, norm=kind, eps=eps, weight=weight, bias=bias, mode=mode, pitch=pitch,
                scale=scale,
            )
        )  # fmt: skip

    def add_normed(self, norm: Norm | None, into: Rows | None = None) -> None:
        """Norm the stream, or just convert it without a norm, for linears to read: to `into`, or else to `normed`."""
        rows = into or self.normed
        self.add_norm(norm, self.hidden, rows.at, pitch=rows.stride)

    def add_norm_of_stream(self, norm: Norm | None) -> None:
        """Norm the stream in place, if there is a norm."""
        if norm is not None:
            self.add_norm(norm, self.hidden, self.hidden, Mode.STORE_FP32)

    def add_branch(self, packed: Packed, given: Rows, after: Norm | None, scale: float) -> None:
        """hidden += scale * after(linear(given))"""
        if after is None:
            self.add_linear(packed, given, Output(out=self.hidden, mode=Mode.ADD, scale=scale))
        else:
            self.add_linear(packed, given, Output(out=self.branch, mode=Mode.STORE_FP32))
            self.add_norm(after, self.branch, self.hidden, Mode.ADD, scale=scale)

    def normed_for(self, mixer: int) -> Rows:
        """The rows that a layer's mixer of this index reads: each mixer has its own."""
        return self.normed if mixer == 0 else self.rows(f"normed {mixer}", self.width)

    def begin_late(self, *rows: tuple[str, int, torch.dtype, int]) -> list[int]:
        """Go on with only the rows whose logits are wanted: gather them from the stream and other buffers.

        Args:
            rows: (name, columns, dtype, address) of each buffer.

        Returns:
            New address of each buffer.
        """
        self.late_from = len(self.operations)
        inputs = [] if self.inputs is None else [("inputs", self.inputs[1], torch.float32, self.inputs[0])]
        everything = [("hidden", self.width, torch.float32, self.hidden), *rows, *inputs]
        moved = [self._gathered(*each) for each in everything]
        self._late = True
        self.hidden = moved[0]
        if self.inputs is not None:
            self.inputs = moved.pop(), self.inputs[1]
        return moved[1:]

    def _gathered(self, what: str, columns: int, dtype: torch.dtype, given: int) -> int:
        gathered = self.buffer(f"wanted {what}", columns, dtype)
        self.add(GatherOp(n=columns * dtype.itemsize // 4, in_=given, out=gathered))
        return gathered

    # ------------------------------------------------------------------------------------ memory

    def keep(self, tensor: Tensor) -> int:
        """Keep a tensor's memory for as long as the builder is there; returns its address.

        A parameter of the model loses its memory once the program has all weights, so the memory is held by a tensor
        of the builder's own.
        """
        self._kept.append(tensor.detach())
        return int(tensor.data_ptr())

    def keep_in_order(self, table: Tensor) -> int:
        """Keep a contiguous form of a table, which may be a slice of another; once, though all layers share it."""
        if id(table) not in self._tables:
            self._tables[id(table)] = table, table.contiguous()
        return int(self._tables[id(table)][1].data_ptr())

    def pack(self, *linears: Linear, of: Iterable[Linear] = (), role: Role = "other") -> Packed:
        """Pack one linear or a gated pair, made `of` the checkpoint's linears, whose pages are then given back."""
        return self._pack(linears, role, of or linears)

    def pack_rounded(self, linear: Linear, bias: Tensor | None) -> Rounded:
        """Pack in 8 bits what is packed exactly, too; the bias is padded already."""
        rounded = self._packer.pack_rounded(linear, bias)
        release_pages(tensors_of(linear.weight))
        return rounded

    def pack_exactly(self, linear: Linear) -> Packed:
        """Pack weights unquantized: these are few and decide much."""
        return replace(self._packer.pack([linear], None), origins=(linear.origins,))

    def _pack(self, linears: Sequence[Linear], role: Role, of: Iterable[Linear | ExpertLinears]) -> Packed:
        rounding = rounding_of(role, self._quantize, self.width)
        packed = replace(
            self._packer.pack(list(linears), rounding), origins=tuple(linear.origins for linear in linears)
        )
        release_pages(tensor for linear in of for tensor in tensors_of(linear.weight))
        return packed

    def pack_experts(self, linears: list[ExpertLinears], chosen: int, role: Role) -> Packed:
        """Pack one linear, or a gated pair, of all experts as one weight: each expert's panels in turn."""
        experts, n = len(linears[0].weight), linears[0].columns
        missing = -n % (PANEL // len(linears))
        padded = [
            Linear(
                _below_each_other(one.weight, missing),
                None if one.bias is None else functional.pad(one.bias, (0, missing)).flatten(),
            )
            for one in linears
        ]
        packed = replace(self._pack(padded, role, linears), n=n)
        self.weight_bytes += packed.bytes * chosen // experts
        return packed

    def rows(self, what: str, columns: int, of_token: int = 1) -> Rows:
        """A buffer in the model's dtype that linears read, with `of_token` rows for each token."""
        stride = _apart(columns, self.dtype)
        return Rows(self.buffer(what, of_token * stride, self.dtype), stride)

    def buffer(self, what: str, columns: int, dtype: torch.dtype) -> int:
        """Address of a buffer (max_tokens, columns), shared by all layers so that it stays in the processor's cache."""
        key = (what, columns, dtype)
        if key not in self._buffers:
            self._buffers[key] = self.keep(self._memory.take(self._max_tokens * columns * dtype.itemsize))
        return self._buffers[key]


def _alike(stacked: Stacked) -> list[Stacked]:
    """The linears as few products: each of linears side by side whose blocks are of one type, if they have blocks."""
    if stacked.order is not None:
        return [stacked]
    return [Stacked(list(group), None) for _, group in itertools.groupby(stacked.parts, key=type_of_blocks)]


def type_of_blocks(linear: Linear) -> str:
    """The type of the blocks that a linear's weight has in its checkpoint; "" if it has none."""
    blocks = None if isinstance(linear.weight, Tensor) else linear.weight.blocks()
    return "" if blocks is None else blocks.type


def _apart(columns: int, dtype: torch.dtype) -> int:
    """Elements from one row to the next. If that were a multiple of an L1 way, as many models' widths are, a column of
    all rows would map to one cache set, which has no room for the dozen rows of a tile."""
    return columns + (_LINE // dtype.itemsize if columns * dtype.itemsize % L1_WAY_BYTES == 0 else 0)


def _below_each_other(weight: Tensor | ExpertStack, missing: int) -> Weight:
    """The experts' rows below each other, `missing` rows of zeros after each expert's."""
    if isinstance(weight, ExpertStack):
        return ConcatenatedExperts(weight, missing)
    return functional.pad(weight, (0, 0, 0, missing)).flatten(0, 1)
