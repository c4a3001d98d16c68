"""Where a step's tokens, and a layer's keys and values, are, as the kernels read it. Runs in the engine process."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from ..attention import LayerShape
from ..scheduler import Chunk
from ..sequence import Sequence
from .pool import Step

KEYS: Final = 16  # of a cache group: block sizes are multiples of it
QUERIES: Final = 24  # (query, head) pairs that share a walk over the keys

#: A sequence's tokens from the one to before the other.
Span = tuple[Sequence, int, int]


@dataclass(frozen=True)
class Places:
    """Tokens that attend. Tiles are runs of one sequence's, each with its blocks' place in `blocks`."""

    positions: npt.NDArray[np.int64]
    tile_start: npt.NDArray[np.int32]
    tile_size: npt.NDArray[np.int32]
    tile_table: npt.NDArray[np.int64]
    blocks: npt.NDArray[np.int64]

    def step(self, block_size: int, block_bytes: int) -> Step:
        """What the kernels are told. It points to these arrays."""
        step = Step(
            tokens=len(self.positions),
            tiles=len(self.tile_start),
            block_size=block_size,
            block_count=len(self.blocks),
            block_bytes=block_bytes,
        )
        for name in ("positions", "tile_start", "tile_size", "tile_table", "blocks"):
            setattr(step, name, getattr(self, name).ctypes.data)
        return step


@dataclass(frozen=True)
class Spans:
    """Runs of one sequence's tokens, for layers that keep a state of each: which one, and whether it begins here."""

    start: npt.NDArray[np.int32]
    size: npt.NDArray[np.int32]
    slot: npt.NDArray[np.int32]
    begins: npt.NDArray[np.int32]

    @classmethod
    def of(cls, sizes: Iterable[int], slots: Iterable[int], begins: Iterable[bool]) -> Spans:
        """Of tokens that lie one span after the other."""
        size = np.fromiter(sizes, np.int32)
        start = np.cumsum(size, dtype=np.int32) - size
        return cls(start, size, np.fromiter(slots, np.int32), np.fromiter(begins, np.int32))

    def tell(self, step: Step) -> None:
        """Have a step point to these arrays."""
        step.spans = len(self.start)
        for name in ("start", "size", "slot", "begins"):
            setattr(step, f"span_{name}", getattr(self, name).ctypes.data)


@functools.lru_cache(maxsize=64)
def even_spans(sequences: int, tokens: int, begin: bool) -> Spans:
    """Of a batch of sequences, each with its state in its place."""
    return Spans.of([tokens] * sequences, range(sequences), [begin] * sequences)


def heads_fit(shape: LayerShape) -> bool:
    """Whether the kernels take heads of these sizes."""
    return shape.key_dim % 2 == shape.value_dim % 16 == 0


def cache_fields(shape: LayerShape, begin: int, block_size: int, dtype: torch.dtype) -> dict[str, int]:
    """What `Op` says of a layer's heads and cache.

    Args:
        begin: address of the layer's part of the first block: its keys, then its values.
    """
    return {
        "heads": shape.heads, "kv_heads": shape.kv_heads, "dim": shape.key_dim, "value_dim": shape.value_dim,
        "keys": begin, "values": begin + shape.kv_heads * shape.key_dim * block_size * dtype.itemsize,
        "stride": (shape.heads + shape.kv_heads) * shape.key_dim + shape.kv_heads * shape.value_dim,
    }  # fmt: skip


def tile_of(heads_per_kv_head: int) -> int:
    """How many tokens of a sequence walk over its keys together."""
    return max(1, QUERIES // heads_per_kv_head)


def span_of(chunk: Chunk) -> Span:
    """All its tokens."""
    return chunk.sequence, chunk.sequence.computed, chunk.sequence.computed + chunk.length


def slots_of(span: Span, block_size: int) -> list[int]:
    """The cache place of each token: block * block_size + offset."""
    sequence, first, end = span
    return [
        sequence.blocks[place // block_size] * block_size + place % block_size for place in range(first, end)
    ]  # lists of numbers: most chunks are a single token


def places_of(spans: list[Span], block_size: int, tile: int) -> Places:
    """Of tokens that lie one span after the other."""
    positions: list[int] = []
    starts, sizes, tables = [], [], []
    blocks: list[int] = []
    for sequence, first, end in spans:
        for offset in range(0, end - first, tile):
            starts.append(len(positions) + offset)
            sizes.append(min(tile, end - first - offset))
            tables.append(len(blocks))
        positions += range(first, end)
        blocks += sequence.blocks[: (end - 1) // block_size + 1]
    return Places(
        positions=np.array(positions, np.int64),
        tile_start=np.array(starts, np.int32),
        tile_size=np.array(sizes, np.int32),
        tile_table=np.array(tables, np.int64),
        blocks=np.array(blocks, np.int64),
    )
