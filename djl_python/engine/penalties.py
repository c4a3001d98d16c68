"""Repetition, presence and frequency penalties. Runs in the engine process.

What is penalized is what has occurred, which is at most the context and usually a hundredth of the vocabulary: only
those tokens' scores are read and written.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .sequence import Sequence


class PenaltyTable:
    """The tokens that have occurred, for the sequences that are penalized for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._occurrences: dict[int, _Occurrences] = {}

    def apply(
        self,
        scores: Tensor,
        rows: Tensor,
        sequences: list[Sequence],
        repetition: Tensor,
        presence: Tensor,
        frequency: Tensor,
    ) -> None:
        """Penalize in place.

        Args:
            scores: (N, vocabulary).
            rows: (R,) rows of `scores`, in the order of `sequences`.
            repetition, presence, frequency: (R, 1). Repetition counts the prompt's tokens too, as transformers does;
                the others count generated tokens only, as OpenAI does.
        """
        found = [self._of(sequence) for sequence in sequences]
        shape = len(found), max(occurrences.size for occurrences in found)
        # A short row repeats its first token: that is written several times, always with the same value.
        ids, counts = np.empty(shape, np.int64), np.empty(shape, np.float32)
        for row, occurrences in enumerate(found):
            size = occurrences.size
            ids[row, :size], ids[row, size:] = occurrences.ids[:size], occurrences.ids[0]
            counts[row, :size], counts[row, size:] = occurrences.counts[:size], occurrences.counts[0]
        places = rows[:, None], torch.from_numpy(ids).to(self._device)
        generated = torch.from_numpy(counts).to(self._device)
        picked = scores[places]
        picked = torch.where(picked > 0, picked / repetition, picked * repetition)
        scores[places] = picked - frequency * generated - presence * (generated > 0)

    def count(self, sequence: Sequence, token: int) -> None:
        """Count a token that was just drawn, and is not among the sequence's tokens yet."""
        self._of(sequence).add(token)

    def drop(self, sequence_id: int) -> None:
        """The sequence has ended."""
        self._occurrences.pop(sequence_id, None)

    def __len__(self) -> int:
        """Sequences that are counted."""
        return len(self._occurrences)

    def _of(self, sequence: Sequence) -> _Occurrences:
        found = self._occurrences.get(sequence.id)
        if found is None:
            found = self._occurrences[sequence.id] = _Occurrences(sequence)
        return found


class _Occurrences:
    """The tokens of one sequence, each once.

    Attributes:
        ids, counts: the first `size` entries are a token, and how often it was generated (0: in the prompt only).
    """

    def __init__(self, sequence: Sequence) -> None:
        self._place_of = {token: place for place, token in enumerate(dict.fromkeys(sequence.tokens))}
        self.ids = np.array(list(self._place_of), np.int64)
        self.counts = np.zeros(len(self.ids), np.float32)
        for token in sequence.tokens[sequence.prompt_length :]:
            self.counts[self._place_of[token]] += 1

    @property
    def size(self) -> int:
        return len(self._place_of)

    def add(self, token: int) -> None:
        """Count a generated token."""
        place = self._place_of.setdefault(token, self.size)
        if place == len(self.ids):
            self.ids = np.concatenate([self.ids, np.zeros_like(self.ids)])
            self.counts = np.concatenate([self.counts, np.zeros_like(self.counts)])
        self.ids[place] = token
        self.counts[place] += 1
