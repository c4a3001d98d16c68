"""Decides which sequences compute how many tokens in the next step. Runs in the engine process; no tensors, no model.

Every step mixes decode (one token for each sequence) with chunked prefill of the prompts that are still being read, so
that a long prompt never stalls the others. `pacing` bounds the prefill tokens of one step.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Final

from .chunk import Chunk
from .kv_cache import BlockManager, OutOfBlocksError
from .pacing import PrefillPacer
from .sequence import Sequence

# After memory ran out, one more sequence is tried whenever so many steps have had enough.
STEPS_TO_TRUST: Final = 1000
#: Most rows of a step to which drafts are added: beyond, a row costs as much as it could save.
MAX_DRAFT_ROWS: Final = 16


class Scheduler:
    """First come, first served. When blocks run out, the youngest sequence is preempted and recomputed later.

    Args:
        short_context: a sequence with more tokens than this uses long-context RoPE; when it becomes so long, it is
            recomputed. 0: no sequence does.
        whole_prompts: never split a prompt over steps, for a model that would begin again with each piece.
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
        on_preempt: Callable[[Sequence], None] = lambda sequence: None,
    ) -> None:
        self.blocks = blocks
        self._short_context = short_context
        self._whole_prompts = whole_prompts
        self._on_preempt = on_preempt
        self.max_sequences = max_sequences
        self.max_prefill_tokens = max_prefill_tokens
        self.pacer = PrefillPacer(max_prefill_tokens)
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.preemptions = 0
        self._suspects: set[int] = set()
        self.fitting = max_sequences  # how many run at once: fewer than `max_sequences` after memory ran out
        self._sufficient = 0  # steps since that last changed

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not self.running and not self.waiting

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a finished or cancelled sequence out and free its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self.blocks.retire(sequence)
        self._suspects.discard(sequence.id)

    def schedule(self) -> list[Chunk]:
        """The chunks of the next step: generating sequences and started prompts first, then new ones."""
        if self._short_context:
            self._change_rope()
        if self._suspects:
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

    def _fill(self, budget: int) -> list[Chunk]:
        """The chunks of a step with at most `budget` prefill tokens."""
        chunks: list[Chunk] = []
        for sequence in self.running:  # who is preempted meanwhile is at its end
            length = 1 if sequence.remaining == 1 else self._piece(sequence, budget)
            if length == 0 or not self._make_room(sequence, length):
                continue  # no budget left for this one: it keeps its place
            if sequence.remaining > 1:
                budget -= length
            chunks.append(Chunk(sequence, length))
        while self.waiting and budget > 0 and len(self.running) < self.fitting:
            sequence = self.waiting[0]
            if not self.blocks.admit(sequence):
                break
            self.waiting.popleft()
            self.running.append(sequence)
            length = self._piece(sequence, budget)
            self.blocks.extend(sequence, sequence.computed + length)
            budget -= length
            chunks.append(Chunk(sequence, length))
        return chunks

    def _piece(self, sequence: Sequence, budget: int) -> int:
        """How many tokens of a prompt to compute in a step that has `budget` prefill tokens left."""
        return sequence.remaining if self._whole_prompts else min(sequence.remaining, budget)

    def reserve(self, chunk: Chunk, drafts: int) -> int:
        """Make room for drafts after the chunk, as far as there are blocks to spare; returns for how many there is.

        None go beyond the short context: there the sequence is recomputed.
        """
        sequence = chunk.sequence
        end = sequence.computed + chunk.length
        if self._short_context and not sequence.long_rope:
            drafts = min(drafts, self._short_context - end)
        with contextlib.suppress(OutOfBlocksError):
            self.blocks.extend(sequence, end + drafts)
        return min(drafts, len(sequence.blocks) * self.blocks.block_size - end)

    def learn(self, chunks: list[Chunk], step_s: float) -> None:
        """Tell how long a step with these chunks took. Call before `advance`."""
        decoding = sum(chunk.sequence.remaining == 1 for chunk in chunks)
        tokens = sum(chunk.length - len(chunk.drafts) for chunk in chunks)  # drafts count as decode
        self.pacer.learn(decoding, tokens - decoding, step_s)

    def advance(self, chunks: list[Chunk]) -> None:
        """Tell what a step has computed. Call before new tokens are appended."""
        if self.fitting < self.max_sequences:
            self._sufficient += 1
            if self._sufficient >= STEPS_TO_TRUST:
                self.fitting, self._sufficient = self.fitting + 1, 0
        for chunk in chunks:
            if chunk.completes:
                self._suspects.discard(chunk.sequence.id)
            chunk.sequence.computed += chunk.length - len(chunk.drafts)
            self.blocks.seal(chunk.sequence)

    def isolate(self, chunks: list[Chunk]) -> Sequence | None:
        """Find the culprit of a failed step with these chunks. A sequence that was alone in the step is returned.

        Otherwise each sequence of the step is recomputed alone, until it has got a token; all others wait meanwhile.
        Sequences that the step had ended before it failed have left already.
        """
        if len(chunks) == 1:
            return chunks[0].sequence
        left = self._still_running(chunks)
        self._suspects.update(sequence.id for sequence in left)
        for sequence in reversed(left):
            self._preempt(sequence)
        self.blocks.forget()  # the failed step may have left anything in the cache
        return None

    def relieve(self, chunks: list[Chunk], repeatable: bool) -> Sequence | None:
        """Memory ran out in a step with these chunks. A sequence that was alone in it is returned.

        Otherwise the youngest waits until fewer are running; what is cached stays right.

        Args:
            repeatable: the step can be repeated, because nothing that it wrote counts yet. Otherwise all its sequences
                are recomputed.
        """
        if len(chunks) == 1:
            return chunks[0].sequence
        left = self._still_running(chunks)
        self.fitting, self._sufficient = max(1, len(self.running) - 1), 0
        for sequence in reversed(left[-1:] if repeatable else left):
            self._preempt(sequence)
        return None

    def _still_running(self, chunks: list[Chunk]) -> list[Sequence]:
        return [chunk.sequence for chunk in chunks if chunk.sequence in self.running]

    def _make_room(self, sequence: Sequence, length: int) -> bool:
        """Get blocks for `length` more tokens, preempting the youngest; False if `sequence` itself was preempted."""
        while True:
            try:
                self.blocks.extend(sequence, sequence.computed + length)
                return True
            except OutOfBlocksError:
                victim = self.running[-1]
                self.preemptions += 1
                self._preempt(victim)
                if victim is sequence:
                    return False

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.blocks.release(sequence)
        self._on_preempt(sequence)
        self.waiting.appendleft(sequence)

    def _schedule_suspect(self) -> list[Chunk]:
        """A step with the first suspect alone."""
        sequence = next((s for s in self.running if s.id in self._suspects), None)
        if sequence is None:
            sequence = next(s for s in self.waiting if s.id in self._suspects)
            while not self.blocks.admit(sequence):
                self._preempt(self.running[-1])
            self.waiting.remove(sequence)
            self.running.append(sequence)
        length = self._piece(sequence, self.max_prefill_tokens)
        self.blocks.extend(sequence, sequence.computed + length)  # there is room: nobody else took any since `admit`
        return [Chunk(sequence, length)]
