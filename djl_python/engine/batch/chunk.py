"""A sequence's part in a step. Runs in the engine process; no tensors."""

from __future__ import annotations

from dataclasses import dataclass

from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class SequenceChunk:
    """The next `length` tokens of `sequence`: uncomputed ones, then `drafts`, which guess the following tokens."""

    sequence: Sequence
    length: int
    drafts: tuple[int, ...] = ()

    @property
    def completes(self) -> bool:
        """Whether the last position's logits will give a new token."""
        return self.length - len(self.drafts) == self.sequence.remaining

    @property
    def encoder_length(self) -> int:
        """How many of its positions, the first ones, are before the decoder's tokens."""
        return min(max(self.sequence.decoder_start - self.sequence.computed, 0), self.length)

    @property
    def tokens(self) -> list[int]:
        """Ids (length,)."""
        first = self.sequence.computed
        return [*self.sequence.tokens[first : first + self.length - len(self.drafts)], *self.drafts]
