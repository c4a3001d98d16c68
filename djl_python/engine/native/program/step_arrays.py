"""Where a step's tokens and a layer's keys and values lie, in the kernels' terms. Runs in the engine process."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from ...batch.scheduler import Chunk
from ...batch.sequence import Sequence
from ...batch.state_slots import StateSpan
from ...torch_backend.attention import LayerShape
from ..thread_pool import Step
from .operations_attention import HeadRows

KEYS_PER_GROUP: Final = 16  # keys of a cache group; block sizes are multiples of it
QUERIES_PER_WALK: Final = 24  # (query, head) pairs that share a pass over the keys

#: (sequence, first, end): a range of its tokens, without `end`.
Span = tuple[Sequence, int, int]


@dataclass(frozen=True)
class Places:
    """A step's tokens. Tiles are runs of one sequence's tokens; `tile_table` has where its blocks begin in `blocks`.

    `rotary_rows` are the positions' rows in the rotary tables.
    """

    positions: npt.NDArray[np.int64]
    rotary_rows: npt.NDArray[np.int64]
    tile_start: npt.NDArray[np.int32]
    tile_size: npt.NDArray[np.int32]
    tile_table: npt.NDArray[np.int64]
    blocks: npt.NDArray[np.int64]

    def step(self, block_size: int, block_bytes: int) -> Step:
        """The kernels' `Step`, which points to these arrays."""
        step = Step(
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
class Spans:
    """Runs of one sequence's tokens, for layers with a recurrent state; `Step` of program.h has the fields."""

    span_start: npt.NDArray[np.int32]
    span_size: npt.NDArray[np.int32]
    span_source: npt.NDArray[np.int32]
    span_slot: npt.NDArray[np.int32]
    span_saves: npt.NDArray[np.int32]
    save_after: npt.NDArray[np.int32]
    save_slot: npt.NDArray[np.int32]

    @classmethod
    def of(cls, sizes: list[int], states: list[StateSpan]) -> Spans:
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

    def tell(self, step: Step, slot_bytes: int) -> None:
        """Have a step point to these arrays."""
        step.spans, step.slot_bytes = len(self.span_start), slot_bytes
        for each in fields(self):
            setattr(step, each.name, getattr(self, each.name).ctypes.data)


@functools.lru_cache(maxsize=64)
def even_spans(sequences: int, tokens: int, begin: bool) -> Spans:
    """Spans of a batch of equally long sequences, each with its state in its own slot, or none yet if `begin`."""
    states = [StateSpan(None if begin else slot, slot, []) for slot in range(sequences)]
    return Spans.of([tokens] * sequences, states)


def heads_fit(shape: LayerShape) -> bool:
    """Whether the kernels support heads of these sizes."""
    return shape.key_dim % 2 == shape.value_dim % 16 == 0


def head_rows(shape: LayerShape, cache: int) -> HeadRows:
    """A layer's heads, in rows that have nothing else.

    Args:
        cache: address of the layer's part of the first block.
    """
    stride = (shape.heads + shape.kv_heads) * shape.key_dim + shape.kv_heads * shape.value_dim
    return HeadRows(shape.heads, shape.kv_heads, shape.key_dim, shape.value_dim, stride, cache)


def tile_of(heads_per_kv_head: int) -> int:
    """How many tokens of a sequence share a pass over its keys."""
    return max(1, QUERIES_PER_WALK // heads_per_kv_head)


def span_of(chunk: Chunk) -> Span:
    """The span of all tokens of a chunk."""
    return chunk.sequence, chunk.sequence.computed, chunk.sequence.computed + chunk.length


def slots_of(span: Span, block_size: int) -> list[int]:
    """The cache slot of each token: block * block_size + offset."""
    sequence, first, end = span
    return [
        sequence.blocks[place // block_size] * block_size + place % block_size for place in range(first, end)
    ]  # a list, no array: most chunks are a single token


def places_of(spans: list[Span], block_size: int, tile: int, near: int = 0) -> Places:
    """Places of the tokens of these spans, one after the other in the batch; `near` is `Rotary.near`."""
    positions: list[int] = []
    rotary_rows: list[int] = []
    starts, sizes, tables = [], [], []
    blocks: list[int] = []
    for sequence, first, end in spans:
        for offset in range(0, end - first, tile):
            starts.append(len(positions) + offset)
            sizes.append(min(tile, end - first - offset))
            tables.append(len(blocks))
        positions += range(first, end)
        if near:
            rotary_rows += range(first + near, end + near) if sequence.far else range(first, end)
        blocks += sequence.blocks[: (end - 1) // block_size + 1]
    of_tokens = np.array(positions, np.int64)
    return Places(
        positions=of_tokens,
        rotary_rows=np.array(rotary_rows, np.int64) if near else of_tokens,
        tile_start=np.array(starts, np.int32),
        tile_size=np.array(sizes, np.int32),
        tile_table=np.array(tables, np.int64),
        blocks=np.array(blocks, np.int64),
    )
