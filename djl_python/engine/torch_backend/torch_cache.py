"""A paged KV cache of torch tensors, on any device, and attention over it. Runs in the engine process.

Queries are grouped so that one kernel call serves many sequences: decoding sequences (one query each) by similar
context length, prompt chunks one by one. Steps that are recorded have a plan of their own (`token_plan`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..attention.dense import attention
from ..attention.parameters import AttentionParams, LayerShape
from ..batch.chunk import SequenceChunk
from ..devices.transfers import upload

_Numbers = npt.NDArray[np.int64]


class AttentionPlan(Protocol):
    """A step's plan, as this cache takes it.

    Attributes:
        slots: (T,) the cache slot of each token of the flat batch: block * block_size + offset.
    """

    slots: Tensor

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, how: AttentionParams) -> Tensor:
        """Attend to all that each sequence has in a layer's cache: (T, heads, value_dim).

        Args:
            query: (heads, T, key_dim).
            keys, values: (blocks, block_size, kv_heads, dim).
        """
        ...


class TorchCache:
    """A `PagedCache`. Keys and values of all layers: per layer two tensors (blocks, block_size, kv_heads, dim).

    Attributes:
        keys, values: a tensor for each layer.
        spare_block: the number of one more block, which no sequence has: for tokens that only fill up a step.
    """

    def __init__(
        self, layers: list[LayerShape], blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ):
        self.block_size = block_size
        self.spare_block = blocks
        self._device = device
        self.keys = [_zeros((blocks + 1, block_size, s.kv_heads, s.key_dim), dtype, device) for s in layers]
        self.values = [_zeros((blocks + 1, block_size, s.kv_heads, s.value_dim), dtype, device) for s in layers]

    @contextmanager
    def step(self, chunks: list[SequenceChunk]) -> Iterator[TorchPlan]:
        yield _plan(chunks, self.block_size, self._device)

    def attend(
        self, layer: int, plan: AttentionPlan, query: Tensor, key: Tensor, value: Tensor, how: AttentionParams
    ) -> Tensor:
        keys, values = self.keys[layer], self.values[layer]
        keys.flatten(0, 1).index_copy_(0, plan.slots, key[0].transpose(0, 1))
        values.flatten(0, 1).index_copy_(0, plan.slots, value[0].transpose(0, 1))
        return plan.attend(query[0], keys, values, how)[None]

    def close(self) -> None:
        return


@dataclass
class Group:
    """Consecutive rows of the flat batch that one kernel call serves: S sequences of `queries` queries each.

    Attributes:
        blocks: (S, B) block numbers, padded with 0 beyond a sequence's own.
        positions: (S, queries) position of each query in its sequence.
        block_size: their context is that of whole blocks. A GPU's attention would copy a mask of an odd length.
    """

    start: int
    stop: int
    queries: int
    blocks: Tensor
    positions: Tensor
    block_size: int
    _masks: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, how: AttentionParams) -> Tensor:
        """The group's rows of what `AttentionPlan.attend` returns."""
        rows = query[:, self.start : self.stop]
        rows = rows.reshape(len(rows), -1, self.queries, query.shape[2]).transpose(0, 1)
        out = attention(rows, self._read(keys), self._read(values), self._mask(how), how)
        return out.transpose(1, 2).flatten(0, 1)

    def _read(self, cache: Tensor) -> Tensor:
        """The group's keys or values: (S, kv_heads, context, dim), zero where no query may look.

        A block's unwritten rest may hold a former owner's NaN, which no mask on the scores would stop.
        """
        return cache[self.blocks].flatten(1, 2).masked_fill_(self.unknown, 0).transpose(1, 2)

    def _mask(self, how: AttentionParams) -> Tensor:
        """`attention`'s, of (S, 1 or heads, queries, context); made once a step and kind of layer, not once a layer."""
        kind = how.window, id(how.distance_bias)
        mask = self._masks.get(kind)
        if mask is None:
            distance = self.positions[:, :, None] - self._keys
            seen = distance >= 0
            if how.window:
                seen &= distance < how.window
            mask = self._masks[kind] = seen[:, None]
            if how.distance_bias is not None:
                bias = how.distance_bias[:, distance.clamp(0, how.distance_bias.shape[1] - 1)].transpose(0, 1)
                mask = self._masks[kind] = bias.masked_fill(~mask, float("-inf"))
        return mask

    @functools.cached_property
    def unknown(self) -> Tensor:
        """(S, context, 1, 1) true beyond a sequence's last query; made once a step."""
        return (self._keys > self.positions[:, -1:])[:, :, None, None]

    @functools.cached_property
    def _keys(self) -> Tensor:
        """(context,) positions."""
        return torch.arange(self.blocks.shape[1] * self.block_size, device=self.positions.device)


@dataclass
class TorchPlan:
    """A `StepPlan`, and an `AttentionPlan`.

    Attributes:
        groups: cover the rows 0 .. T-1 in order.
    """

    order: list[SequenceChunk]
    positions: Tensor
    slots: Tensor
    groups: list[Group]

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, how: AttentionParams) -> Tensor:
        """`AttentionPlan` describes it."""
        pieces = [group.attend(query, keys, values, how) for group in self.groups]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _plan(chunks: list[SequenceChunk], block_size: int, device: torch.device) -> TorchPlan:
    """Where all tokens go: one array of the host, which is copied to the device at once."""
    groups = in_groups(chunks, block_size, coarse=device.type == "cuda")
    positions: list[_Numbers] = []
    slots: list[_Numbers] = []
    tables: list[_Numbers] = []
    for group in groups:
        table = np.zeros((len(group), max(_blocks(chunk, block_size) for chunk in group)), np.int64)
        for row, chunk in enumerate(group):
            first, end = chunk.sequence.computed, chunk.sequence.computed + chunk.length
            used = _blocks(chunk, block_size)
            table[row, :used] = chunk.sequence.blocks[:used]
            place = np.arange(first, end)
            positions.append(place)
            slots.append(table[row, place // block_size] * block_size + place % block_size)
        tables.append(table)
    order = [chunk for group in groups for chunk in group]
    tokens = sum(chunk.length for chunk in order)
    numbers = np.concatenate([*positions, *slots, *(table.reshape(-1) for table in tables)])
    placed = upload(numbers, device)
    where, slot, *rest = torch.split(placed, [tokens, tokens, *(table.size for table in tables)])
    plan = TorchPlan(order=order, positions=where, slots=slot, groups=[])
    stop = 0
    for group, table, blocks in zip(groups, tables, rest, strict=True):
        start, queries = stop, group[0].length
        stop += queries * len(group)
        at = where[start:stop].view(-1, queries)
        plan.groups.append(Group(start, stop, queries, blocks.view(table.shape), at, block_size))
    return plan


def in_groups(chunks: list[SequenceChunk], block_size: int, coarse: bool) -> list[list[SequenceChunk]]:
    """Chunks that one attention call can serve: single tokens by context, prompt chunks alone.

    A group's contexts are as long as its longest, up to twice as long as they need be. With `coarse` groups, up to four
    times, in half as many calls: a GPU has the time, but not its host.
    """
    buckets: dict[int, list[SequenceChunk]] = {}
    groups: list[list[SequenceChunk]] = []
    for chunk in chunks:
        if chunk.length > 1:
            groups.append([chunk])
        else:
            power = (_blocks(chunk, block_size) - 1).bit_length()
            buckets.setdefault((power + 1) // 2 if coarse else power, []).append(chunk)
    return [*buckets.values(), *groups]


def _blocks(chunk: SequenceChunk, block_size: int) -> int:
    return -(-(chunk.sequence.computed + chunk.length) // block_size)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros whose memory the operating system gives only when it is written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros((*shape[:-1], shape[-1] * dtype.itemsize), np.uint8)).view(dtype)
