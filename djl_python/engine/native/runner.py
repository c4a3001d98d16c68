"""Steps of the batch through a native program. Runs in the engine process."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ..model_runner import rows_of
from ..scheduler import Chunk
from ..sequence import Sequence
from .program import QUERIES, Places, Program, StepArrays

_Span = tuple[Sequence, int, int]  # its tokens from the one to before the other


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
        slots: list[int] = []
        rows: list[int] = []
        everything: list[_Span] = []
        wanted: list[_Span] = []
        for chunk in chunks:  # lists of numbers: most chunks are a single token
            sequence, first = chunk.sequence, chunk.sequence.computed
            end, last = first + chunk.length, rows_of(chunk)
            ids += chunk.tokens
            slots += [sequence.blocks[place // size] * size + place % size for place in range(first, end)]
            rows += range(len(ids) - last, len(ids))
            everything.append((sequence, first, end))
            if last:
                wanted.append((sequence, end - last, end))
        tokens = self._places(everything)
        return StepArrays(
            ids=np.array(ids, np.int64),
            slots=np.array(slots, np.int64),
            rows=np.array(rows, np.int64),
            tokens=tokens,
            wanted=tokens if len(rows) == len(ids) else self._places(wanted),
        )

    def _places(self, spans: list[_Span]) -> Places:
        positions: list[int] = []
        starts, sizes, tables = [], [], []
        blocks: list[int] = []
        for sequence, first, end in spans:
            for offset in range(0, end - first, self._tile):
                starts.append(len(positions) + offset)
                sizes.append(min(self._tile, end - first - offset))
                tables.append(len(blocks))
            positions += range(first, end)
            blocks += sequence.blocks[: (end - 1) // self._block_size + 1]
        return Places(
            positions=np.array(positions, np.int64),
            tile_start=np.array(starts, np.int32),
            tile_size=np.array(sizes, np.int32),
            tile_table=np.array(tables, np.int64),
            blocks=np.array(blocks, np.int64),
        )
