"""Draft tokens by looking the last tokens up in the text so far ("prompt lookup"). Runs in the engine process.

Proposes the tokens that followed them the last time. That is right where a text repeats itself or its prompt
(summaries, edits, code), and next to free where it doesn't.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field
from typing import Final

from ..batch.chunk import SequenceChunk
from ..batch.sequence import Sequence
from .speculation import Confidence, Drafts

# A longer match is tried first, and is right more often: each length has a confidence of its own.
_LENGTHS: Final = (4, 2)


@dataclass
class _Seen:
    """For each n-gram of a sequence, the index of the token that followed it the last time."""

    end_of: dict[tuple[int, ...], int] = field(default_factory=dict)
    read: int = 0
    confidence: dict[int, Confidence] = field(default_factory=lambda: {n: Confidence() for n in _LENGTHS})
    matched: int = _LENGTHS[0]

    def read_to(self, tokens: list[int], end: int) -> None:
        """Note the n-grams that end before `end`."""
        for stop in range(self.read + 1, end + 1):
            for n in _LENGTHS:
                if stop >= n:
                    self.end_of[tuple(tokens[stop - n : stop])] = stop
        self.read = end


class NgramDrafter:
    """A `Drafter` without a model."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def propose(self, sequences: abc.Sequence[Sequence], ahead: abc.Sequence[int]) -> Drafts:
        drafted = ((sequence.id, self._drafts(sequence, most)) for sequence, most in zip(sequences, ahead, strict=True))
        return {sequence_id: drafts for sequence_id, drafts in drafted if drafts}

    def learn(self, sequence: Sequence, proposed: int, accepted: int) -> None:
        seen = self._seen[sequence.id]
        seen.confidence[seen.matched].learn(proposed, accepted)

    def follow(self, chunks: abc.Sequence[SequenceChunk]) -> None:
        return

    def forget(self, sequence: Sequence) -> None:
        self._seen.pop(sequence.id, None)

    def close(self) -> None:
        return

    def _drafts(self, sequence: Sequence, most: int) -> tuple[int, ...]:
        seen, tokens = self._seen.setdefault(sequence.id, _Seen()), sequence.tokens
        seen.read_to(tokens, len(tokens) - 1)
        for n in _LENGTHS:
            at = seen.end_of.get(tuple(tokens[-n:]))
            if at is not None:
                seen.matched = n
                count = seen.confidence[n].worth(most)
                # A text that has begun to repeat is taken to go on: past its end its last period comes again.
                period = len(tokens) - at
                return tuple(tokens[at + i % period] for i in range(count))
        return ()
