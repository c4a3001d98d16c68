"""A step's tokens as arrays that the kernels read. Runs in the engine process."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from ...batch.chunk import SequenceChunk
from ...batch.sequence import Sequence
from ...batch.state_slots import StateSpan
from ..abi.enums import ADAPTER_ROWS, QUERIES_PER_WALK
from ..abi.step_inputs import StepInputs

#: (sequence, first, end): a range of its tokens, without `end`.
TokenRange = tuple[Sequence, int, int]


@dataclass(frozen=True)
class AttentionArrays:
    """Where tokens and the keys that they see lie, under the names of `StepInputs`."""

    positions: npt.NDArray[np.int64]
    rotary_rows: npt.NDArray[np.int64]
    tile_start: npt.NDArray[np.int32]
    tile_size: npt.NDArray[np.int32]
    tile_table: npt.NDArray[np.int64]
    blocks: npt.NDArray[np.int64]

    def step_inputs(self, block_size: int, block_bytes: int) -> StepInputs:
        """Inputs that point to these arrays."""
        step = StepInputs(
            tokens=len(self.positions),
            tiles=len(self.tile_start),
            block_size=block_size,
            block_count=len(self.blocks),
            block_bytes=block_bytes,
        )
        for name in ("positions", "rotary_rows", "tile_start", "tile_size", "tile_table", "blocks"):
            setattr(step, name, getattr(self, name).ctypes.data)
        return step


@dataclass(frozen=True)
class StateArrays:
    """Spans of tokens and their states' slots, for recurrent layers, under the names of `StepInputs`."""

    span_start: npt.NDArray[np.int32]
    span_size: npt.NDArray[np.int32]
    span_source: npt.NDArray[np.int32]
    span_slot: npt.NDArray[np.int32]
    span_saves: npt.NDArray[np.int32]
    save_after: npt.NDArray[np.int32]
    save_slot: npt.NDArray[np.int32]

    @classmethod
    def of(cls, sizes: list[int], states: list[StateSpan]) -> StateArrays:
        """Spans of these sizes, one after the other in the batch, with their states."""
        size = np.array(sizes, np.int32)
        return cls(
            span_start=np.cumsum(size, dtype=np.int32) - size,
            span_size=size,
            span_source=np.array([-1 if each.source is None else each.source for each in states], np.int32),
            span_slot=np.array([each.slot for each in states], np.int32),
            span_saves=np.cumsum([0, *(len(each.saves) for each in states)], dtype=np.int32),
            save_after=np.array([after for each in states for after, _ in each.saves], np.int32),
            save_slot=np.array([slot for each in states for _, slot in each.saves], np.int32),
        )

    @property
    def last_slot(self) -> int:
        """The highest slot that is written."""
        return max(int(slots.max(initial=0)) for slots in (self.span_slot, self.save_slot))

    def bind(self, step: StepInputs, slot_bytes: int) -> None:
        """Have inputs point to these arrays."""
        step.spans, step.slot_bytes = len(self.span_start), slot_bytes
        for each in fields(self):
            setattr(step, each.name, getattr(self, each.name).ctypes.data)


@dataclass(frozen=True)
class AdapterArrays:
    """Which adapter each token has, under the names of `StepInputs`."""

    adapter_slots: npt.NDArray[np.int32]
    adapter_rows: npt.NDArray[np.int32]
    adapter_tile_start: npt.NDArray[np.int32]
    adapter_tile_size: npt.NDArray[np.int32]

    @classmethod
    def of(cls, slots: npt.NDArray[np.int32]) -> AdapterArrays:
        """The arrays for tokens with adapters in these slots; 0: without one."""
        order = np.argsort(slots, kind="stable").astype(np.int32)
        rows = order[np.count_nonzero(slots == 0) :]
        _, begins, counts = np.unique(slots[rows], return_index=True, return_counts=True)
        starts, sizes = list[int](), list[int]()
        for begin, count in zip(begins.tolist(), counts.tolist(), strict=True):
            starts += range(begin, begin + count, ADAPTER_ROWS)
            sizes += (min(ADAPTER_ROWS, count - passed) for passed in range(0, count, ADAPTER_ROWS))
        return cls(slots, rows, np.array(starts, np.int32), np.array(sizes, np.int32))

    def bind(self, step: StepInputs) -> None:
        """Have inputs point to these arrays."""
        step.adapter_tiles = len(self.adapter_tile_start)
        for each in fields(self):
            setattr(step, each.name, getattr(self, each.name).ctypes.data)


@dataclass(frozen=True)
class StepArrays:
    """One step: its tokens, the cache slots of their keys and values, and the `rows` whose logits are wanted.

    `wanted` is where the tokens of these rows lie; `states` are each sequence's tokens, for layers that keep states;
    `adapters` and `wanted_adapters` are whose the tokens and the wanted rows are; None: no token has one.
    """

    ids: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    tokens: AttentionArrays
    wanted: AttentionArrays
    states: StateArrays | None = None
    adapters: AdapterArrays | None = None
    wanted_adapters: AdapterArrays | None = None


@functools.lru_cache(maxsize=64)
def even_state_arrays(sequences: int, tokens: int, begin: bool) -> StateArrays:
    """Spans of a batch of equally long sequences, each with its state in its own slot, or none yet if `begin`."""
    states = [StateSpan(None if begin else slot, slot, []) for slot in range(sequences)]
    return StateArrays.of([tokens] * sequences, states)


@functools.lru_cache(maxsize=64)
def adapter_arrays(runs: tuple[tuple[int, int], ...]) -> AdapterArrays:
    """The arrays for runs of tokens: (slot of the adapter, how many)."""
    return AdapterArrays.of(np.repeat(*(np.array(each, np.int32) for each in zip(*runs, strict=True))))


def tile_size(heads_per_kv_head: int) -> int:
    """How many tokens of a sequence share a pass over its keys."""
    return max(1, QUERIES_PER_WALK // heads_per_kv_head)


def token_range(chunk: SequenceChunk) -> TokenRange:
    """The range of all tokens of a chunk."""
    return chunk.sequence, chunk.sequence.computed, chunk.sequence.computed + chunk.length


def cache_slots(span: TokenRange, block_size: int) -> list[int]:
    """The cache slot of each token: block * block_size + offset."""
    sequence, first, end = span
    return [
        sequence.blocks[place // block_size] * block_size + place % block_size for place in range(first, end)
    ]  # a list, no array: most chunks are a single token


def attention_arrays(ranges: list[TokenRange], block_size: int, tile: int, short_context: int = 0) -> AttentionArrays:
    """Arrays of these tokens, range after range in the batch, for a recipe with this `short_context`."""
    positions: list[int] = []
    rotary_rows: list[int] = []
    starts, sizes, tables = [], [], []
    blocks: list[int] = []
    for sequence, first, end in ranges:
        for offset in range(0, end - first, tile):
            starts.append(len(positions) + offset)
            sizes.append(min(tile, end - first - offset))
            tables.append(len(blocks))
        positions += range(first, end)
        if short_context:
            shift = short_context if sequence.long_rope else 0
            rotary_rows += range(first + shift, end + shift)
        blocks += sequence.blocks[: (end - 1) // block_size + 1]
    of_tokens = np.array(positions, np.int64)
    return AttentionArrays(
        positions=of_tokens,
        rotary_rows=np.array(rotary_rows, np.int64) if short_context else of_tokens,
        tile_start=np.array(starts, np.int32),
        tile_size=np.array(sizes, np.int32),
        tile_table=np.array(tables, np.int64),
        blocks=np.array(blocks, np.int64),
    )
