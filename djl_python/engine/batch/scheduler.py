"""Decides which sequences compute how many tokens in the next step. Runs in the engine process; no tensors, no model.

Every step mixes decode (one token for each sequence) with chunked prefill of the prompts that are still being read, so
that a long prompt never stalls the others. `pacing` bounds the prefill tokens of one step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ...core.turns.fair_queue import FairQueue, TenantKey, tenant_of
from .adapter_slots import AdapterSlots
from .chunk import SequenceChunk
from .kv_cache import BlockManager, OutOfBlocksError
from .pacing import PrefillPacer
from .sequence import Sequence

# After memory ran out, one more sequence is tried whenever so many steps have had enough.
STEPS_TO_TRUST: Final = 1000
#: Most rows of a step to which drafts are added: beyond, a row costs as much as it could save.
MAX_DRAFT_ROWS: Final = 16


class Scheduler:
    """First come, first served; between tenants by their shares, within one by priority (`core.turns.fair_queue`).

    When blocks run out, the sequence that comes last in this order is preempted, and recomputed later.

    Args:
        short_context: a sequence with more tokens than this uses long-context RoPE; when it reaches that length, it is
            recomputed. 0: the model has no such RoPE.
        whole_prompts: never split a prompt over steps, for a model that would begin again with each piece.
        adapters: the slots of the runner's adapters, if it has any.
        on_preempt: called with each preempted sequence: none of what was computed of it is needed any more.
    """

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_sequences: int,
        max_prefill_tokens: int,
        short_context: int = 0,
        whole_prompts: bool = False,
        adapters: AdapterSlots | None = None,
        on_preempt: Callable[[Sequence], None] = lambda sequence: None,
    ) -> None:
        self.blocks = blocks
        self._short_context = short_context
        self._whole_prompts = whole_prompts
        self._adapters = adapters
        self._on_preempt = on_preempt
        self.max_sequences = max_sequences
        self.max_prefill_tokens = max_prefill_tokens
        self.pacer = PrefillPacer(max_prefill_tokens)
        self.running: list[Sequence] = []
        self.waiting = FairQueue[Sequence]()
        self.preemptions = 0
        self.suspects: set[int] = set()  # ids of sequences whose step failed: each is recomputed alone
        self.fitting = max_sequences  # how many run at once: fewer than `max_sequences` after memory ran out
        self._sufficient = 0  # steps since that last changed

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not self.running and not self.waiting

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a finished or cancelled sequence out and free its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.waiting.leave(sequence)
        else:
            self.waiting.remove(sequence)
        self._leave_slot(sequence)
        self.blocks.retire(sequence)
        self.suspects.discard(sequence.id)

    def schedule(self) -> list[SequenceChunk]:
        """The chunks of the next step: generating sequences and started prompts first, then new ones.

        There are none while every sequence waits for an adapter that is being read.
        """
        if self._short_context:
            self._change_rope()
        if self.suspects:
            return self._schedule_suspect()
        decoding = sum(sequence.remaining == 1 for sequence in self.running)
        prompts = len(self.running) - decoding + len(self.waiting)
        chunks = self._fill(self.pacer.budget(decoding, prompts) if prompts else 0)
        # Empty if all decoding sequences were preempted, in a step that was to time decode alone.
        return chunks or self._fill(self.pacer.budget(0))

    def _change_rope(self) -> None:
        """Have sequences that have outgrown the short context recomputed with long-context RoPE."""
        for sequence in [*self.waiting, *reversed(self.running)]:
            if not sequence.long_rope and len(sequence.tokens) > self._short_context:
                sequence.long_rope = True
                if sequence in self.running:
                    self._preempt(sequence)

    def _fill(self, budget: int) -> list[SequenceChunk]:
        """The chunks of a step with at most `budget` prefill tokens."""
        budgets = self._budgets(budget)
        self._yield_place(budgets)
        chunks: list[SequenceChunk] = []
        running = self._ranked()
        for sequence in running:  # sequences that are preempted meanwhile are at its end
            tenant = tenant_of(sequence)
            length = 1 if sequence.remaining == 1 else self._piece(sequence, budgets[tenant])
            if length == 0 or not self._make_room(sequence, length, running):
                continue  # no budget left for this one: it keeps its place
            if sequence.remaining > 1:
                budgets[tenant] -= length
            chunks.append(SequenceChunk(sequence, length))
        for sequence in self._admissible():
            tenant = tenant_of(sequence)
            if budgets[tenant] <= 0:
                if max(budgets.values()) <= 0:
                    break
                continue  # its tenant has had its part of this step
            if len(self.running) >= self.fitting or not self.blocks.admit(sequence):
                break
            self._start(sequence)
            length = self._piece(sequence, budgets[tenant])
            self.blocks.extend(sequence, sequence.computed + length)
            budgets[tenant] -= length
            chunks.append(SequenceChunk(sequence, length))
        return chunks

    def _ranked(self) -> list[Sequence]:
        """The running sequences, those last that are preempted first."""
        return self.running if self.waiting.plain else self.waiting.ranked(self.running, self.fitting)

    def _budgets(self, budget: int) -> dict[TenantKey, int]:
        """The prefill tokens of a step that each tenant's prompts get."""
        if not self.waiting.plain:
            prompts = [sequence for sequence in self.running if sequence.remaining > 1]
            return self.waiting.allot(budget, prompts, lambda sequence: sequence.remaining)
        sequence = self.running[0] if self.running else self.waiting.first
        return {} if sequence is None else {tenant_of(sequence): budget}

    def _yield_place(self, budgets: Mapping[TenantKey, int]) -> None:
        """Preempt running sequences for the first waiting one, if it has more right to their places and can begin."""
        if self.waiting.plain or (waiting := self.waiting.first) is None or budgets[tenant_of(waiting)] <= 0:
            return
        if self._adapters is not None and waiting.adapter_number not in (0, *self._adapters.held):
            return
        while len(self.running) >= self.fitting or not self.blocks.has_room_for(waiting):
            victim = self.waiting.yielding(waiting, self.running, self.fitting)
            if victim is None:
                return
            self.preemptions += 1
            self._preempt(victim)

    def _admissible(self) -> Iterator[Sequence]:
        """The waiting sequences that could begin, in their order; those without their adapter are passed."""
        if self._adapters is None and self.waiting.plain:
            while (first := self.waiting.first) is not None:
                yield first
            return
        if self._adapters is not None:
            self._adapters.begin()
        for sequence in self.waiting:
            if self._adapters is None or not sequence.adapter_number or self._adapters.admits(sequence):
                yield sequence

    def _start(self, sequence: Sequence) -> None:
        """Have a waiting sequence run, which has its blocks, and its adapter in a slot."""
        self.waiting.take(sequence)
        self.running.append(sequence)
        if self._adapters is not None and sequence.adapter_number:
            self._adapters.enter(sequence)

    def _leave_slot(self, sequence: Sequence) -> None:
        if self._adapters is not None:
            self._adapters.leave(sequence)

    def _piece(self, sequence: Sequence, budget: int) -> int:
        """How many tokens of a prompt to compute in a step that has `budget` prefill tokens left."""
        return sequence.remaining if self._whole_prompts else min(sequence.remaining, budget)

    def reserve(self, chunk: SequenceChunk, drafts: int) -> int:
        """Make room for drafts after the chunk, if blocks can be spared; returns for how many.

        Drafts never go beyond the short context, where the sequence is recomputed.
        """
        sequence = chunk.sequence
        end = sequence.computed + chunk.length
        if self._short_context and not sequence.long_rope:
            drafts = min(drafts, self._short_context - end)
        with contextlib.suppress(OutOfBlocksError):
            self.blocks.extend(sequence, end + drafts)
        return min(drafts, len(sequence.blocks) * self.blocks.block_size - end)

    def learn(self, chunks: list[SequenceChunk], step_s: float) -> None:
        """Learn from the duration of a step with these chunks. Call before `mark_computed`."""
        decoding = sum(chunk.sequence.remaining == 1 for chunk in chunks)
        tokens = sum(chunk.length - len(chunk.drafts) for chunk in chunks)  # drafts count as decode
        self.pacer.learn(decoding, tokens - decoding, step_s)

    def mark_computed(self, chunks: list[SequenceChunk]) -> None:
        """Mark the chunks of a step as computed. Call before new tokens are appended."""
        if self.fitting < self.max_sequences:
            self._sufficient += 1
            if self._sufficient >= STEPS_TO_TRUST:
                self.fitting, self._sufficient = self.fitting + 1, 0
        for chunk in chunks:
            if chunk.completes:
                self.suspects.discard(chunk.sequence.id)
            chunk.sequence.computed += chunk.length - len(chunk.drafts)
            self.blocks.seal(chunk.sequence)

    def isolate(self, chunks: list[SequenceChunk]) -> Sequence | None:
        """Find the culprit of a failed step with these chunks. A sequence that was alone in the step is returned.

        Otherwise each sequence of the step is recomputed alone, until it has got a token; all others wait meanwhile.
        Sequences that the step had ended before it failed have left already.
        """
        if len(chunks) == 1:
            return chunks[0].sequence
        left = self._still_running(chunks)
        self.suspects.update(sequence.id for sequence in left)
        for sequence in reversed(left):
            self._preempt(sequence)
        self.blocks.forget()  # the failed step may have left anything in the cache
        return None

    def relieve(self, chunks: list[SequenceChunk], repeatable: bool) -> Sequence | None:
        """Memory ran out in a step with these chunks. A sequence that was alone in it is returned.

        Otherwise the youngest waits until fewer are running; cached blocks stay valid.

        Args:
            repeatable: the step can be repeated, because its results are not used yet. Otherwise all its sequences are
                recomputed.
        """
        if len(chunks) == 1:
            return chunks[0].sequence
        left = self._still_running(chunks)
        self.fitting, self._sufficient = max(1, len(self.running) - 1), 0
        for sequence in reversed(left[-1:] if repeatable else left):
            self._preempt(sequence)
        return None

    def _still_running(self, chunks: list[SequenceChunk]) -> list[Sequence]:
        return [chunk.sequence for chunk in chunks if chunk.sequence in self.running]

    def _make_room(self, sequence: Sequence, length: int, running: list[Sequence]) -> bool:
        """Get blocks for `length` more tokens, preempting the last of `running`.

        Returns:
            False if `sequence` itself was preempted.
        """
        while True:
            try:
                self.blocks.extend(sequence, sequence.computed + length)
                return True
            except OutOfBlocksError:
                victim = running[-1]
                self.preemptions += 1
                self._preempt(victim)
                if running is not self.running:
                    running.pop()
                if victim is sequence:
                    return False

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._leave_slot(sequence)
        self.blocks.release(sequence)
        self._on_preempt(sequence)
        self.waiting.give_back(sequence)

    def _schedule_suspect(self) -> list[SequenceChunk]:
        """A step with the first suspect alone; none while its adapter is being read."""
        sequence = next((s for s in self.running if s.id in self.suspects), None)
        if sequence is None:
            sequence = next(s for s in self.waiting if s.id in self.suspects)
            if not self._admit_suspect(sequence):
                return []
            while not self.blocks.admit(sequence):
                self._preempt(self.running[-1])
            self._start(sequence)
        length = self._piece(sequence, self.max_prefill_tokens)
        self.blocks.extend(sequence, sequence.computed + length)  # there is room: nobody else took any since `admit`
        return [SequenceChunk(sequence, length)]

    def _admit_suspect(self, sequence: Sequence) -> bool:
        """Get a suspect's adapter into a slot, if it has one, which others may have to leave for it."""
        if self._adapters is None or not sequence.adapter_number:
            return True
        self._adapters.begin()
        while not (admitted := self._adapters.admits(sequence)) and self.running:
            self._preempt(self.running[-1])
            self._adapters.begin()
        return admitted
