"""Texts in a row as arrays that the kernels read. Runs in the engine process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from ...reading.recipe.encoder import TextEmbedding
from ..abi.enums import KEYS_PER_GROUP, QUERIES_PER_WALK
from ..abi.step_inputs import StepInputs

Longs = npt.NDArray[np.int64]

#: Tokens of a block of keys and values: each text begins with a block of its own.
BLOCK: Final = KEYS_PER_GROUP


@dataclass(frozen=True)
class TextArrays:
    """Under the names of `StepInputs`: the tokens of all texts, one after the other, and where their keys lie."""

    ids: Longs
    positions: Longs
    rotary_rows: Longs
    lengths: Longs
    places: Longs
    type_ids: Longs
    slots: Longs
    tile_start: npt.NDArray[np.int32]
    tile_size: npt.NDArray[np.int32]
    tile_table: Longs
    blocks: Longs

    @classmethod
    def of(
        cls,
        texts: Sequence[Sequence[int]],
        types: Sequence[Sequence[int]],
        embedding: TextEmbedding,
        heads_per_kv_head: int,
    ) -> TextArrays:
        """The arrays of some texts' ids.

        Args:
            types: of each text's tokens; fewer than tokens, or none: the rest is of type 0.

        Raises:
            ValueError: a table of the embedding has no such row.
        """
        sizes = np.array([len(text) for text in texts], np.int64)
        starts = np.cumsum(sizes) - sizes
        ids = np.fromiter((one for text in texts for one in text), np.int64, int(sizes.sum()))
        type_ids = np.zeros_like(ids)
        for start, given in zip(starts.tolist(), types, strict=True):
            type_ids[start : start + len(given)] = given
        positions = np.arange(len(ids)) - np.repeat(starts, sizes)
        places = _places(ids, positions, starts, sizes, embedding)
        tables = ((ids, embedding.table), (places, embedding.positions), (type_ids, embedding.types))
        for rows, table in tables:
            if table is not None and not 0 <= rows.min() <= rows.max() < len(table):
                raise ValueError(f"rows {rows.min()} to {rows.max()} of a table of {len(table)}")
        own_blocks = -(-sizes // BLOCK)
        first_blocks = np.cumsum(own_blocks) - own_blocks
        # Tiles of a text are nearly equally long: in one of a few tokens, fewer queries share a walk over all keys.
        most = max(1, QUERIES_PER_WALK // heads_per_kv_head)
        tiles = -(-sizes // most)
        tile_sizes = np.repeat(-(-sizes // tiles), tiles)
        offsets = (np.arange(len(tile_sizes)) - np.repeat(np.cumsum(tiles) - tiles, tiles)) * tile_sizes
        ends = np.minimum(offsets + tile_sizes, np.repeat(sizes, tiles))
        return cls(
            ids=ids,
            positions=positions,
            rotary_rows=positions,
            lengths=np.repeat(sizes, sizes),
            places=places,
            type_ids=type_ids,
            slots=np.repeat(first_blocks * BLOCK, sizes) + positions,
            tile_start=(np.repeat(starts, tiles) + offsets).astype(np.int32),
            tile_size=(ends - offsets).astype(np.int32),
            tile_table=np.repeat(first_blocks, tiles),
            blocks=np.arange(own_blocks.sum()),
        )

    def step_inputs(self, block_bytes: int) -> StepInputs:
        """Inputs that point to these arrays."""
        step = StepInputs(
            tokens=len(self.ids),
            tiles=len(self.tile_start),
            block_size=BLOCK,
            block_count=len(self.blocks),
            block_bytes=block_bytes,
        )
        for each in fields(self):
            setattr(step, each.name, getattr(self, each.name).ctypes.data)
        return step


def _places(ids: Longs, positions: Longs, starts: Longs, sizes: Longs, embedding: TextEmbedding) -> Longs:
    """Rows of the table of positions; see `TextEmbedding`."""
    if embedding.skipped_id is None:
        return positions + embedding.first_place
    counts = ids != embedding.skipped_id
    so_far = np.concatenate([[0], np.cumsum(counts)])
    before = so_far[:-1] - np.repeat(so_far[starts], sizes)
    places: Longs = np.where(counts, before, -1) + embedding.first_place
    return places
