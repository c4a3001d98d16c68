"""Runs steps of the batch through a native program. Runs in the engine process."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ...adapters.peft_files import LoraAdapter
from ...batch.chunk import SequenceChunk
from ...batch.sequence import Sequence
from ...batch.state_slots import StateSlots
from ...runner.model_runner import rows_of
from ...sampling.row_sampler import SampledTokens, SamplingRequest
from .program import Program
from .row_sampling import PlannedSamplings
from .step_arrays import (
    StateArrays,
    StepArrays,
    TokenRange,
    adapter_arrays,
    attention_arrays,
    cache_slots,
    tile_size,
    token_range,
)


class NativeModelRunner:
    """An AdapterRunner over a Program.

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

    def run(self, chunks: list[SequenceChunk]) -> Tensor:
        return self._program.run(self._arrays(chunks))

    def pick(self, chunks: list[SequenceChunk], asked: SamplingRequest) -> SampledTokens | Tensor | None:
        rescorer = self._program.rescorer
        if rescorer is None or (_adapted(chunks) and self._program.adapts_head) or not rescorer.patience.tries():
            return None
        if self._samplings is None or self._samplings.plan is not asked.plan:
            self._samplings = PlannedSamplings(asked.plan, self._program.vocabulary)
        self._samplings.update(asked)
        return self._program.pick(self._arrays(chunks), self._samplings)

    @property
    def vocabulary(self) -> int:
        """How many logits a row has."""
        return self._program.vocabulary

    @property
    def adaptable_modules(self) -> frozenset[str]:
        """Names of the modules that adapters may change."""
        return self._program.adapters.modules

    def load_adapter(self, slot: int, adapter: LoraAdapter) -> None:
        self._program.load_adapter(slot, adapter)

    def unload_adapter(self, slot: int) -> None:
        self._program.unload_adapter(slot)

    def operator_seconds(self) -> dict[str, float]:
        return self._program.pool.seconds()

    def forget(self, sequence: Sequence) -> None:
        if self._states is not None:
            self._states.release(sequence)

    def _arrays(self, chunks: list[SequenceChunk]) -> StepArrays:
        states = None
        if self._states is not None:
            states = StateArrays.of([chunk.length for chunk in chunks], self._states.spans(chunks))
        return step_arrays(
            chunks, block_size=self._block_size, tile=self._tile, short_context=self._short_context, states=states
        )


def step_arrays(
    chunks: list[SequenceChunk], *, block_size: int, tile: int, short_context: int, states: StateArrays | None = None
) -> StepArrays:
    """What the kernels of a program read of a step.

    Args:
        block_size: tokens in a block of the cache.
        tile: how many tokens of a sequence attention computes at once.
        short_context: from this length on, a sequence has long-context RoPE; 0: there is one kind.
        states: the slots of recurrent states.
    """
    ids: list[int] = []
    slots: list[int] = []
    rows: list[int] = []
    everything: list[TokenRange] = []
    wanted: list[TokenRange] = []
    for chunk in chunks:
        span, last = token_range(chunk), rows_of(chunk)
        ids += chunk.tokens
        slots += cache_slots(span, block_size)
        rows += range(len(ids) - last, len(ids))
        everything.append(span)
        if last:
            wanted.append((chunk.sequence, span[2] - last, span[2]))
    adapters = wanted_adapters = None
    if _adapted(chunks):
        adapters = adapter_arrays(tuple((chunk.sequence.adapter_slot, chunk.length) for chunk in chunks))
        last_rows = tuple((chunk.sequence.adapter_slot, count) for chunk in chunks if (count := rows_of(chunk)))
        wanted_adapters = adapter_arrays(last_rows) if last_rows else None
    tokens = attention_arrays(everything, block_size, tile, short_context)
    return StepArrays(
        ids=np.array(ids, np.int64),
        slots=np.array(slots, np.int64),
        rows=np.array(rows, np.int64),
        tokens=tokens,
        wanted=tokens if len(rows) == len(ids) else attention_arrays(wanted, block_size, tile, short_context),
        states=states,
        adapters=adapters,
        wanted_adapters=wanted_adapters,
    )


def _adapted(chunks: list[SequenceChunk]) -> bool:
    """Whether a sequence has an adapter."""
    return any(chunk.sequence.adapter_slot for chunk in chunks)
