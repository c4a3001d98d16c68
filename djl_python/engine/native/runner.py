"""Steps of the batch through a native program. Runs in the engine process."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ..model_runner import rows_of
from ..scheduler import Chunk
from ..sequence import Sequence
from .program import QUERIES, Program, StepArrays


class NativeModelRunner:
    """A ModelRunner over a Program."""

    def __init__(self, program: Program, block_size: int) -> None:
        self._program = program
        self._block_size = block_size
        self._tile = max(1, QUERIES // program.heads_per_kv_head)

    def run(self, chunks: list[Chunk]) -> Tensor:
        return self._program.run(self._arrays(chunks))

    def operator_seconds(self) -> dict[str, float]:
        return self._program.pool.seconds()

    def forget(self, sequence: Sequence) -> None:
        return

    def _arrays(self, chunks: list[Chunk]) -> StepArrays:
        size = self._block_size
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        rows: list[int] = []
        starts, sizes, tables = [], [], []
        blocks: list[int] = []
        for chunk in chunks:  # lists of numbers: most chunks are a single token
            first = chunk.sequence.computed
            end, start = first + chunk.length, len(ids)
            held = chunk.sequence.blocks[: (end - 1) // size + 1]
            ids += chunk.tokens
            positions += range(first, end)
            slots += [held[place // size] * size + place % size for place in range(first, end)]
            rows += range(len(ids) - rows_of(chunk), len(ids))
            for offset in range(0, chunk.length, self._tile):
                starts.append(start + offset)
                sizes.append(min(self._tile, chunk.length - offset))
                tables.append(len(blocks))
            blocks += held
        return StepArrays(
            ids=np.array(ids, np.int64),
            positions=np.array(positions, np.int64),
            slots=np.array(slots, np.int64),
            rows=np.array(rows, np.int64),
            tile_start=np.array(starts, np.int32),
            tile_size=np.array(sizes, np.int32),
            tile_table=np.array(tables, np.int64),
            blocks=np.array(blocks, np.int64),
        )
