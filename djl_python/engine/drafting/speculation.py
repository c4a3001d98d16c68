"""Speculative decoding: the model checks draft tokens together with the token that it has to read anyway.

Runs in the engine process. A draft is accepted if the sampler, with the random number of its position, draws the same
token. So the text is, token for token, what it would be without speculation, greedy or sampled. Drafts only change the
speed, and stop where they do not pay.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from ..batch.chunk import SequenceChunk
from ..batch.scheduler import MAX_DRAFT_ROWS
from ..batch.sequence import Sequence

Drafts = dict[int, tuple[int, ...]]

# Cost of one more row, in steps of one row. Measured on CPUs: 0.04 to 0.07.
ROW_COST: Final = 0.07
_FIRST_GUESS: Final = 0.6  # assumed probability that a draft is right, before any was seen
_WEIGHT: Final = 0.15  # of the newest observation
_TRY_AGAIN: Final = 24  # opportunities to let pass where drafts do not pay, before one is tried


class Drafter(Protocol):
    """Proposes draft tokens."""

    def propose(self, sequences: abc.Sequence[Sequence], ahead: abc.Sequence[int]) -> Drafts:
        """Drafts by sequence id, at most `ahead` tokens for each sequence; none for one without a good guess."""
        ...

    def learn(self, sequence: Sequence, proposed: int, accepted: int) -> None:
        """Learn how many drafts for a sequence were right; it has grown by these and one more token."""
        ...

    def follow(self, chunks: abc.Sequence[SequenceChunk]) -> None:
        """Take note that the model has read these chunks; called before `Sequence.computed` is advanced."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept for a sequence that has ended."""
        ...

    def close(self) -> None:
        """No more guesses are wanted."""
        ...


@dataclass
class Confidence:
    """How often drafts have been right lately, and how many are worth their cost."""

    right: float = _FIRST_GUESS
    passed: int = field(default=0, repr=False)

    def worth(self, most: int, cost: float = ROW_COST) -> int:
        """How many drafts (up to `most`) pay at `cost` steps each; if none does, now and then 1, to find out."""
        # Each further draft counts only if all before it are right.
        count, likely = 0, self.right
        while count < most and likely > cost:
            count += 1
            likely *= self.right
        if count:
            return count
        self.passed += 1
        if self.passed < _TRY_AGAIN:
            return 0
        self.passed = 0
        return min(1, most)

    def learn(self, proposed: int, accepted: int) -> None:
        for _ in range(accepted):
            self.right += _WEIGHT * (1 - self.right)
        if accepted < proposed:
            self.right -= _WEIGHT * self.right


class Speculation:
    """Adds drafts to a step's chunks.

    Args:
        length: most drafts for a sequence in one step.
        max_model_len: most tokens of a sequence.

    Attributes:
        drafter: proposes the drafts.
    """

    def __init__(self, drafter: Drafter, length: int, max_model_len: int) -> None:
        self.drafter = drafter
        self._length = length
        self._max_model_len = max_model_len
        self.proposed = 0
        self.accepted = 0

    def add_drafts(
        self, chunks: list[SequenceChunk], reserve: Callable[[SequenceChunk, int], int]
    ) -> list[SequenceChunk]:
        """The chunks, some of them with drafts.

        Args:
            reserve: makes room in the cache for drafts after a chunk, and returns for how many there is.
        """
        spare = MAX_DRAFT_ROWS - sum(chunk.length for chunk in chunks)
        able = [(chunk, room) for chunk in chunks if (room := self._room(chunk))][: max(spare, 0)]
        if not able:
            return chunks
        share = spare // len(able)
        ahead = [reserve(chunk, min(room, share)) for chunk, room in able]
        drafts = self.drafter.propose([chunk.sequence for chunk, _ in able], ahead)
        return [
            SequenceChunk(chunk.sequence, chunk.length + len(guess), guess)
            if (guess := drafts.get(chunk.sequence.id))
            else chunk
            for chunk in chunks
        ]

    def follow(self, chunks: abc.Sequence[SequenceChunk]) -> None:
        """Update the drafter after the model has read these chunks."""
        self.drafter.follow(chunks)

    def learn(self, chunk: SequenceChunk, accepted: int) -> None:
        """Take note of how many of the chunk's drafts were right."""
        self.proposed += len(chunk.drafts)
        self.accepted += accepted
        self.drafter.learn(chunk.sequence, len(chunk.drafts), accepted)

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept for a sequence that has ended."""
        self.drafter.forget(sequence)

    def close(self) -> None:
        """No more drafts are wanted."""
        self.drafter.close()

    def _room(self, chunk: SequenceChunk) -> int:
        """How many drafts this chunk could have."""
        sequence = chunk.sequence
        if not chunk.completes or chunk.length > 1 or not sequence.generated or not _predictable(sequence):
            return 0
        left = min(
            sequence.sampling.max_new_tokens - sequence.generated,
            self._max_model_len - len(sequence.tokens),
        )
        return min(self._length, left - 1)


def _predictable(sequence: Sequence) -> bool:
    """Whether the rules for drawing the token after next are known without knowing the next one."""
    sampling = sequence.sampling
    return (
        sampling.grammar is None
        and not sampling.bad_words_ids
        and sampling.repetition_penalty == 1
        and not sampling.presence_penalty
        and not sampling.frequency_penalty
        and sequence.generated >= sampling.min_new_tokens
        and not sequence.wants_prompt_logprobs
    )
