"""LoRA adapters of a native program, in slots. Runs in the engine process.

The weights of a product stay as they are. A step some of whose sequences have adapters runs another list of operations:
before each product that a loaded adapter changes, a LowRankOp makes the adapters' inner numbers of what the product
reads, and the product adds to its sums what the adapters make of them (low_rank.h). A step without adapters runs the
program's own list.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from ....core.errors import ParameterError
from ...adapters.peft_files import LoraAdapter, LowRank
from ...checkpoints.linears import RowOrigins
from ...reading.recipe.primitives import NotUnderstoodError
from ..abi.decoder import EmbedOp, LinearOp
from ..abi.enums import PANEL
from ..abi.low_rank import LowRankEmbedOp, LowRankOp, LowRankPart, LowRankRows
from ..abi.structures import Operation
from .builders.builder import Adaptable

_LANES: Final = 16  # inner numbers of a vector
_HALF: Final = PANEL // 2  # columns of half a panel
_PAIR: Final = 2  # inner numbers in a 32-bit lane of bf16: those of each module begin at a multiple of it


class ProgramAdapters:
    """The adapters that a program has in its slots.

    Attributes:
        modules: names of the modules that adapters may change; others' operations can't add what an adapter does.

    Args:
        adaptable: the operations that adapters can change.
        names: of the model's modules.
        max_tokens: maximum tokens of a step.
    """

    def __init__(
        self, adaptable: Iterable[Adaptable], names: Mapping[nn.Module, str], dtype: torch.dtype, max_tokens: int
    ) -> None:
        targets = [_Target(each, names, dtype) for each in adaptable]
        self._targets = {id(each.operation): each for each in targets}
        self._dtype, self._max_tokens = dtype, max_tokens
        self._inner = torch.empty(0)
        self._slots = 0  # the highest that has held an adapter
        self.modules = _whole(targets)

    def load(self, slot: int, adapter: LoraAdapter) -> None:
        """Put an adapter into a slot, 1 or more, in the place of what is there.

        Raises:
            NotUnderstoodError: it changes a module that no operation can add to.
            ParameterError: its numbers are too large for the model's number format.
        """
        self.unload(slot)
        if others := sorted(adapter.products.keys() - self.modules):
            raise NotUnderstoodError(f"the native kernels can't add what an adapter does to {others[0]}")
        for name, product in adapter.products.items():
            if not all(torch.isfinite(part.to(self._dtype)).all() for part in (product.a, product.b)):
                raise ParameterError(f"its numbers for {name} are too large for {self._dtype}", "src")
        self._slots = max(self._slots, slot)
        try:
            for target in self._targets.values():
                target.load(slot, adapter.products)
        except BaseException:
            self.unload(slot)
            raise

    def unload(self, slot: int) -> None:
        """Empty a slot."""
        for target in self._targets.values():
            target.loaded.pop(slot, None)

    def changes(self, operation: Operation) -> bool:
        """Whether a loaded adapter changes an operation."""
        target = self._targets.get(id(operation))
        return target is not None and bool(target.loaded)

    def operations(self, *lists: Iterable[Operation]) -> list[list[Operation]]:
        """Lists of operations, each with what the loaded adapters add; valid until one is loaded or unloaded."""
        width = max((target.width for target in self._targets.values()), default=0)
        self._inner = torch.empty(self._max_tokens, width)
        return [[made for each in operations for made in self._changed(each)] for operations in lists]

    def _changed(self, operation: Operation) -> list[Operation]:
        return (
            self._targets[id(operation)].operations(self._inner, self._slots)
            if self.changes(operation)
            else [operation]
        )


@dataclass(frozen=True)
class _Loaded:
    """What an adapter adds to an operation, as `LowRankPart` has it."""

    vectors: int
    a: Tensor
    b: Tensor
    first: Tensor

    @property
    def addresses(self) -> LowRankPart:
        """For operations; the tensors must outlive these."""
        return LowRankPart(
            vectors=self.vectors, steps=self.b.shape[1], a=self.a.data_ptr(), b=self.b.data_ptr(),
            first=self.first.data_ptr(),
        )  # fmt: skip


class _Target:
    """An operation that adapters can change.

    Attributes:
        sizes: rows of the weights of its modules, by name.
        index, rows, factors: (half panels, 32) of each column as the operation makes them: the index of its module in
            `sizes`, -1 for none; its row of that module's weight; what this was multiplied by.
        loaded: what adapters add, by slot.
    """

    def __init__(self, adaptable: Adaptable, names: Mapping[nn.Module, str], dtype: torch.dtype) -> None:
        self.operation, self._given, self._scale = adaptable.operation, adaptable.given, adaptable.scale
        self._dtype = dtype
        self.sizes: dict[str, int] = {}
        self.loaded: dict[int, _Loaded] = {}
        self._parts: Any = None  # keeps alive what the operations point to
        width = PANEL // len(adaptable.origins)
        shares = [[_panels(each, width) for each in self._columns(origins, names)] for origins in adaptable.origins]
        self.index, self.rows, self.factors = (
            torch.stack(each, 1).view(-1, _HALF) for each in zip(*shares, strict=True)
        )
        self._present = set(self.index.flatten().tolist())

    def _columns(self, origins: RowOrigins, names: Mapping[nn.Module, str]) -> tuple[Tensor, Tensor, Tensor]:
        """Index, row and factor of each row of a weight."""
        self.sizes |= {names[module]: rows for module, rows in origins.modules if module in names}
        known = list(self.sizes)
        indices = [known.index(names[module]) if module in names else -1 for module, _ in origins.modules]
        factors = torch.ones(len(origins.rows)) if origins.factors is None else origins.factors
        return torch.tensor([*indices, -1])[origins.index], origins.rows, factors

    @property
    def width(self) -> int:
        """Inner numbers of a row, of the adapter that has most."""
        return _LANES * max((each.vectors for each in self.loaded.values()), default=0)

    def load(self, slot: int, products: Mapping[str, LowRank]) -> None:
        """Hold what an adapter adds, if it does."""
        own = {
            index: products[name]
            for index, name in enumerate(self.sizes)
            if index in self._present and name in products
        }
        if not own:
            return
        starts = _starts([each.rank for each in own.values()])
        inner = -(-starts[-1] // _LANES) * _LANES
        a = torch.zeros(inner, next(iter(own.values())).a.shape[1])
        # Each half panel multiplies the inner numbers of its own modules: from `first` on, as many as the widest needs.
        begin, end = torch.full_like(self.index, inner), torch.full_like(self.index, 0)
        for (index, product), start, stop in zip(own.items(), starts, starts[1:], strict=False):
            a[start : start + product.rank] = product.a
            begin[self.index == index], end[self.index == index] = start, stop
        begin, end = begin.amin(1), end.amax(1)
        count = int((end - begin).amax())
        first = begin.clamp(max=inner - count)
        b = torch.zeros(*self.index.shape, count)
        for (index, product), start in zip(own.items(), starts, strict=False):
            half, column = (self.index == index).nonzero(as_tuple=True)
            rows = product.b[self.rows[half, column]] * self.factors[half, column, None]
            places = (start - first[half])[:, None] + torch.arange(product.rank)
            b[half[:, None], column[:, None], places] = rows
        self.loaded[slot] = _Loaded(
            inner // _LANES,
            a.T.contiguous()
            if isinstance(self.operation, EmbedOp)
            else _lanes(a.view(-1, _LANES, a.shape[1]), self._dtype),
            _lanes(b, self._dtype),
            torch.where(end > begin, first, -1).int(),
        )

    def operations(self, inner: Tensor, slots: int) -> list[Operation]:
        """The operation with what the loaded adapters add to it.

        Args:
            inner: (tokens, width) memory for the inner numbers.
            slots: the highest that a token can have.
        """
        array = (LowRankPart * (slots + 1))()
        for slot, each in self.loaded.items():
            array[slot] = each.addresses
        self._parts, parts = array, ctypes.addressof(array)
        if isinstance(self.operation, EmbedOp):
            operation = self.operation
            return [operation, LowRankEmbedOp(n=operation.n, out=operation.out, scale=self._scale, parts=parts)]
        assert self._given is not None
        product = LinearOp.from_buffer_copy(self.operation)
        product.low_rank = LowRankRows(parts=parts, in_=inner.data_ptr(), stride=inner.shape[1])
        making = LowRankOp(
            k=product.k, in_=self._given.at, stride=self._given.stride, out=inner.data_ptr(), pitch=inner.shape[1],
            vectors=self.width // _LANES, parts=parts,
        )  # fmt: skip
        making.late = product.late
        return [making, product]


def _lanes(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """(parts, columns, k) as (parts, k in 32-bit lanes, columns)."""
    return numbers.to(dtype).view(torch.int32).transpose(1, 2).contiguous()


def _starts(ranks: list[int]) -> list[int]:
    """Where the inner numbers of modules with these ranks begin, and where the last one's end."""
    starts = [0]
    for rank in ranks:
        starts.append(starts[-1] + -(-rank // _PAIR) * _PAIR)
    return starts


def _panels(columns: Tensor, width: int) -> Tensor:
    """(columns,) as (panels, width), padded with -1."""
    return functional.pad(columns, (0, -len(columns) % width), value=-1).view(-1, width)


def _whole(targets: Iterable[_Target]) -> frozenset[str]:
    """Names of the modules all of whose rows the targets have."""
    rows_by_name: defaultdict[str, list[Tensor]] = defaultdict(list)
    sizes: dict[str, int] = {}
    for target in targets:
        sizes |= target.sizes
        for index, name in enumerate(target.sizes):
            rows_by_name[name].append(target.rows[target.index == index])
    return frozenset(name for name, rows in rows_by_name.items() if len(set(torch.cat(rows).tolist())) == sizes[name])
