"""LoRA adapters beside a model's modules, where torch runs it. Runs in the engine process.

A module that some adapter changes has a forward hook, from the adapter's loading to its end. In a step with adapters it
adds to each row of the module's output the products of that row's adapter. Short steps multiply all rows by all
adapters' matrices at once, and drop what is not a row's own; long ones take one adapter's rows after the other's. Where
ranks divide a linear, each has its part of the products, and adds it before the ranks do (`devices.divided_linears`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import GenerationError, ParameterError
from ..adapters.peft_files import LoraAdapter
from ..batch.chunk import SequenceChunk
from ..devices.divided_linears import part_forward, part_of
from ..devices.transfers import indices

# From so many rows of each adapter on, products by adapter cost less than those of all rows with all adapters.
_MANY_ROWS: Final = 32


class RowSlots:
    """Which slot each row of a step belongs to.

    Args:
        slots: of the rows, in order.
    """

    def __init__(self, slots: Sequence[int], device: torch.device) -> None:
        self.slots = slots
        self.used = sorted({*slots} - {0})
        self.alone = slots[0] if len({*slots}) == 1 else None
        self._device = device
        self._foreign: dict[tuple[int, ...], Tensor] = {}

    def __len__(self) -> int:
        return len(self.slots)

    def rows_of(self, slot: int) -> Tensor:
        """Numbers of a slot's rows."""
        return self._groups[slot]

    def foreign(self, owners: tuple[int, ...]) -> Tensor:
        """(rows, columns): whether a column, of the slot in `owners`, is not the row's own."""
        if owners not in self._foreign:
            columns = indices(list(owners), self._device)
            self._foreign[owners] = self._tensor[:, None] != columns
        return self._foreign[owners]

    @cached_property
    def _tensor(self) -> Tensor:
        return indices(list(self.slots), self._device)

    @cached_property
    def _groups(self) -> Mapping[int, Tensor]:
        return {
            slot: indices([row for row, own in enumerate(self.slots) if own == slot], self._device)
            for slot in self.used
        }


@dataclass(frozen=True)
class Stack:
    """The products of all loaded adapters that change one module, side by side.

    Attributes:
        a: (columns, in); of an embedding, (tokens, columns).
        b: (out, columns)
        owners: the slot of each column.
    """

    a: Tensor
    b: Tensor
    owners: tuple[int, ...]
    embedding: bool

    def columns_of(self, slot: int) -> slice:
        """The range of a slot's columns."""
        first = self.owners.index(slot)
        return slice(first, first + self.owners.count(slot))

    def joined(self, other: Stack) -> Stack:
        """Both, side by side."""
        a = torch.cat([self.a, other.a], dim=1 if self.embedding else 0)
        return Stack(a, torch.cat([self.b, other.b], dim=1), self.owners + other.owners, self.embedding)

    def without(self, slot: int) -> Stack | None:
        """What is left without a slot's columns; None: nothing."""
        kept = [column for column, owner in enumerate(self.owners) if owner != slot]
        if not kept:
            return None
        columns = indices(kept, self.a.device)
        a = self.a.index_select(1 if self.embedding else 0, columns)
        owners = tuple(self.owners[column] for column in kept)
        return Stack(a, self.b.index_select(1, columns), owners, self.embedding)

    def first(self, x: Tensor, columns: slice) -> Tensor:
        """x (rows, in), or token ids (rows,), times `a`: (rows, columns)."""
        if self.embedding:
            return F.embedding(x, self.a[:, columns])
        return F.linear(x.to(self.a.dtype), self.a[columns])

    def second(self, between: Tensor, columns: slice) -> Tensor:
        """(rows, columns) times `b`: (rows, out)."""
        return F.linear(between, self.b[:, columns])


class TorchAdapters:
    """A model's adapters in slots, and what they add in a step.

    Args:
        device: the device of products of modules whose own weights are elsewhere.
    """

    def __init__(self, model: Any, device: torch.device) -> None:
        self._model = model
        self._device = device
        head = getattr(model, "get_output_embeddings", lambda: None)
        self._head: nn.Module | None = head()
        self._slots: set[int] = set()
        self._stacks: dict[str, Stack] = {}
        self._hooks: dict[str, Callable[[], None]] = {}  # what ends each
        # The step's rows, those whose logits are wanted, and within a part of a recurrent layer, that part's.
        self._rows: RowSlots | None = None
        self._kept: RowSlots | None = None
        self._part: RowSlots | None = None

    @property
    def bytes(self) -> int:
        """What the products take on their devices."""
        return sum(stack.a.nbytes + stack.b.nbytes for stack in self._stacks.values())

    @torch.inference_mode()
    def load(self, slot: int, adapter: LoraAdapter) -> None:
        """`AdapterRunner.load_adapter`.

        Raises:
            ParameterError: its numbers are too large for the model's number format.
        """
        self.unload(slot)
        self._slots.add(slot)
        try:
            for name, product in adapter.products.items():
                module = self._model.get_submodule(name)
                embedding, dtype = isinstance(module, nn.Embedding), self._model.dtype
                device = _device_of(module, self._device)
                a = (product.a.T if embedding else product.a).to(device, dtype, copy=True).contiguous()
                b = product.b.to(device, dtype, copy=True)
                # The whole matrices are checked, so that all ranks refuse an adapter or none does.
                if not bool(torch.isfinite(a).all() & torch.isfinite(b).all()):
                    raise ParameterError(f"its numbers for {name} are too large for {dtype}", "src")
                if not embedding:
                    a, b = part_of(a, module, 1), part_of(b, module, 0)
                own = Stack(a, b, (slot,) * product.rank, embedding)
                self._put(name, own if name not in self._stacks else self._stacks[name].joined(own))
        except BaseException:
            self.unload(slot)
            raise

    @torch.inference_mode()
    def unload(self, slot: int) -> None:
        """`AdapterRunner.unload_adapter`."""
        self._slots.discard(slot)
        for name, stack in list(self._stacks.items()):
            if slot in stack.owners:
                self._put(name, stack.without(slot))

    def used_by(self, chunks: Sequence[SequenceChunk]) -> bool:
        """Whether a sequence of the step has an adapter."""
        return bool(self._slots) and any(chunk.sequence.adapter_slot in self._slots for chunk in chunks)

    @contextmanager
    def over(self, flat: Sequence[SequenceChunk], keep: Sequence[int]) -> Iterator[None]:
        """Context in which the model computes these chunks, one after the other in a flat batch.

        Args:
            keep: rows of the batch whose logits are wanted.
        """
        if not self.used_by(flat):
            yield
            return
        slots = [chunk.sequence.adapter_slot for chunk in flat for _ in range(chunk.length)]
        self._rows = RowSlots(slots, self._device)
        self._kept = RowSlots([slots[row] for row in keep], self._device)
        try:
            yield
        finally:
            self._rows = self._kept = None

    @contextmanager
    def alone(self, slot: int) -> Iterator[None]:
        """Context in which all that the model computes is of one slot."""
        self._part = RowSlots([slot], self._device) if slot in self._slots else None
        try:
            yield
        finally:
            self._part = None

    @contextmanager
    def narrowed(self, rows: slice | Tensor) -> Iterator[None]:
        """Context in which a layer computes some rows of the flat batch."""
        if self._rows is None:
            yield
            return
        slots = self._rows.slots
        chosen = slots[rows] if isinstance(rows, slice) else [slots[row] for row in rows.tolist()]
        self._part = RowSlots(chosen, self._device)
        try:
            yield
        finally:
            self._part = None

    def _put(self, name: str, stack: Stack | None) -> None:
        if stack is None:
            del self._stacks[name]
            self._hooks.pop(name)()
            return
        self._stacks[name] = stack
        if name not in self._hooks:
            self._hooks[name] = self._hooked(name, self._model.get_submodule(name))

    def _hooked(self, name: str, module: nn.Module) -> Callable[[], None]:
        """Have a module add what adapters do to what it makes; returns what ends that."""
        part = part_forward(module)
        if part is None:

            def hook(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any], made: Tensor) -> Tensor:
                return self._added(name, module, args[0] if args else next(iter(named.values())), made)

            return module.register_forward_hook(hook, with_kwargs=True).remove
        part.addition = partial(self._added, name, module)
        return partial(setattr, part, "addition", None)

    def _added(self, name: str, module: nn.Module, x: Tensor, made: Tensor) -> Tensor:
        """What a module has made of `x`, with what adapters add to it."""
        stack = self._stacks[name]
        x = x.reshape(-1) if stack.embedding else x.reshape(-1, x.shape[-1])
        rows = self._rows_of(name, module, len(x))
        if rows is None or not any(slot in stack.owners for slot in rows.used):
            return made
        flat = made.reshape(len(x), -1)
        if rows.alone is not None:
            columns = stack.columns_of(rows.alone)
            flat = flat + stack.second(stack.first(x, columns), columns)
        elif len(x) < _MANY_ROWS * len(rows.used):
            whole = slice(None)
            between = stack.first(x, whole).masked_fill(rows.foreign(stack.owners), 0)
            flat = flat + stack.second(between, whole)
        else:
            flat = flat.clone()
            for slot in rows.used:
                if slot in stack.owners:
                    own, columns = rows.rows_of(slot), stack.columns_of(slot)
                    added = stack.second(stack.first(x.index_select(0, own), columns), columns)
                    flat.index_add_(0, own, added.to(flat.dtype))
        return flat.to(made.dtype).view(made.shape)

    def _rows_of(self, name: str, module: nn.Module, count: int) -> RowSlots | None:
        """The adapters of the rows that a module computes; None: the step has no adapters."""
        if self._part is not None:
            if self._part.alone is not None or len(self._part) == count:
                return self._part
        elif self._rows is None or self._kept is None:
            return None
        elif module is self._head and count == len(self._kept):
            return self._kept
        elif count == len(self._rows):
            return self._rows
        elif count == len(self._kept):
            return self._kept
        raise GenerationError(
            f"{name} computes {count} rows at once, which are not those of the step's sequences: its adapter can't be "
            "computed"
        )


def _device_of(module: nn.Module, otherwise: torch.device) -> torch.device:
    weights = [*module.parameters(), *module.buffers()]
    return next((weight.device for weight in weights if weight.device.type != "meta"), otherwise)
