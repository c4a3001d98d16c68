"""Runs steps of the batch through a native program. Runs in the engine process."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ...batch.scheduler import Chunk
from ...batch.sequence import Sequence
from ...batch.state_slots import StateSlots
from ...sampling.choosing import Asked, Chosen
from ...torch_backend.model_runner import rows_of
from .program import Program, StepArrays
from .row_sampling import PlannedChoices
from .step_arrays import Span, Spans, places_of, slots_of, span_of, tile_of


class NativeModelRunner:
    """A ModelRunner over a Program.

    Args:
        states: slots of the program's recurrent states, if it has any.
    """

    def __init__(self, program: Program, block_size: int, states: StateSlots | None = None) -> None:
        self._program = program
        self._block_size = block_size
        self._tile = tile_of(program.heads_per_kv_head)
        self._near = program.near
        self._states = states
        self._choices: PlannedChoices | None = None

    def run(self, chunks: list[Chunk]) -> Tensor:
        return self._program.run(self._arrays(chunks))

    def pick(self, chunks: list[Chunk], asked: Asked) -> Chosen | Tensor | None:
        picker = self._program.picker
        if picker is None or not picker.patience.tries():
            return None
        if self._choices is None or self._choices.plan is not asked.plan:
            self._choices = PlannedChoices(asked.plan, self._program.vocabulary)
        self._choices.tell(asked)
        return self._program.pick(self._arrays(chunks), self._choices)

    def operator_seconds(self) -> dict[str, float]:
        return self._program.pool.seconds()

    def forget(self, sequence: Sequence) -> None:
        if self._states is not None:
            self._states.release(sequence)

    def _arrays(self, chunks: list[Chunk]) -> StepArrays:
        ids: list[int] = []
        slots: list[int] = []
        rows: list[int] = []
        everything: list[Span] = []
        wanted: list[Span] = []
        for chunk in chunks:
            span, last = span_of(chunk), rows_of(chunk)
            ids += chunk.tokens
            slots += slots_of(span, self._block_size)
            rows += range(len(ids) - last, len(ids))
            everything.append(span)
            if last:
                wanted.append((chunk.sequence, span[2] - last, span[2]))
        tokens = places_of(everything, self._block_size, self._tile, self._near)
        return StepArrays(
            ids=np.array(ids, np.int64),
            slots=np.array(slots, np.int64),
            rows=np.array(rows, np.int64),
            tokens=tokens,
            wanted=tokens if len(rows) == len(ids) else places_of(wanted, self._block_size, self._tile, self._near),
            spans=self._spans(chunks),
        )

    def _spans(self, chunks: list[Chunk]) -> Spans | None:
        if self._states is None:
            return None
        return Spans.of([chunk.length for chunk in chunks], self._states.spans(chunks))
