"""A sequence's part in a step. Runs in the engine process; no tensors."""

from __future__ import annotations

from dataclasses import dataclass

from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next `length` tokens of `sequence`: uncomputed ones, then `drafts`, guesses of what follows them."""

    sequence: Sequence
    length: int
    drafts: tuple[int, ...] = ()

    @property
    def completes(self) -> bool:
        """Whether the last position's logits will give a new token."""
        return self.length - len(self.drafts) == self.sequence.remaining

    @property
    def tokens(self) -> list[int]:
        """Ids (length,)."""
        first = self.sequence.computed
        return [*self.sequence.tokens[first : first + self.length - len(self.drafts)], *self.drafts]
