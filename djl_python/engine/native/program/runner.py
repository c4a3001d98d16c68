"""Runs steps of the batch through a native program. Runs in the engine process."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ...batch.chunk import Chunk
from ...batch.sequence import Sequence
from ...batch.state_slots import StateSlots
from ...sampling.row_sampler import SampledTokens, SamplingRequest
from ...torch_backend.model_runner import rows_of
from .program import Program
from .row_sampling import PlannedSamplings
from .step_arrays import (
    StateArrays,
    StepArrays,
    TokenRange,
    attention_arrays,
    cache_slots,
    tile_size,
    token_range,
)


class NativeModelRunner:
    """A ModelRunner over a Program.

    Args:
        states: slots of the program's recurrent states, if it has any.
    """

    def __init__(self, program: Program, block_size: int, states: StateSlots | None = None) -> None:
        self._program = program
        self._block_size = block_size
        self._tile = tile_size(program.heads_per_kv_head)
        self._short_context = program.short_context
        self._states = states
        self._samplings: PlannedSamplings | None = None

    def run(self, chunks: list[Chunk]) -> Tensor:
        return self._program.run(self._arrays(chunks))

    def pick(self, chunks: list[Chunk], asked: SamplingRequest) -> SampledTokens | Tensor | None:
        rescorer = self._program.rescorer
        if rescorer is None or not rescorer.patience.tries():
            return None
        if self._samplings is None or self._samplings.plan is not asked.plan:
            self._samplings = PlannedSamplings(asked.plan, self._program.vocabulary)
        self._samplings.tell(asked)
        return self._program.pick(self._arrays(chunks), self._samplings)

    def operator_seconds(self) -> dict[str, float]:
        return self._program.pool.seconds()

    def forget(self, sequence: Sequence) -> None:
        if self._states is not None:
            self._states.release(sequence)

    def _arrays(self, chunks: list[Chunk]) -> StepArrays:
        ids: list[int] = []
        slots: list[int] = []
        rows: list[int] = []
        everything: list[TokenRange] = []
        wanted: list[TokenRange] = []
        for chunk in chunks:
            span, last = token_range(chunk), rows_of(chunk)
            ids += chunk.tokens
            slots += cache_slots(span, self._block_size)
            rows += range(len(ids) - last, len(ids))
            everything.append(span)
            if last:
                wanted.append((chunk.sequence, span[2] - last, span[2]))
        tokens = attention_arrays(everything, self._block_size, self._tile, self._short_context)
        return StepArrays(
            ids=np.array(ids, np.int64),
            slots=np.array(slots, np.int64),
            rows=np.array(rows, np.int64),
            tokens=tokens,
            wanted=tokens
            if len(rows) == len(ids)
            else attention_arrays(wanted, self._block_size, self._tile, self._short_context),
            states=self._state_arrays(chunks),
        )

    def _state_arrays(self, chunks: list[Chunk]) -> StateArrays | None:
        if self._states is None:
            return None
        return StateArrays.of([chunk.length for chunk in chunks], self._states.spans(chunks))
