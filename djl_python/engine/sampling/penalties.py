"""Repetition, presence and frequency penalties. Runs in the engine process.

Only tokens that have occurred are penalized. They are at most as many as the context, and usually a hundredth of the
vocabulary, so only their scores are read and written.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.types import SamplingParams
from ..batch.sequence import Sequence
from ..devices.transfers import upload

_MOST: Final = 1e30


class Occurrences:
    """The distinct tokens of one sequence, with counts.

    Attributes:
        ids, counts: a token, and how often it was generated (0: in the prompt only); the first `size` entries are used.
        addresses: of the two arrays, for the native kernels.
    """

    def __init__(self, sequence: Sequence) -> None:
        prompt = dict.fromkeys(sequence.tokens[sequence.decoder_start : sequence.prompt_length])
        self._place_of = {token: place for place, token in enumerate(prompt)}
        self._counted = sequence.prompt_length
        self._keep(np.array(list(prompt), np.int64), np.zeros(len(prompt), np.float32))
        self.follow(sequence)

    @property
    def size(self) -> int:
        return len(self._place_of)

    def follow(self, sequence: Sequence) -> None:
        """Count the tokens that were appended since the last call. Tokens that were drawn but not appended never
        count.
        """
        for token in sequence.tokens[self._counted :]:
            place = self._place_of.setdefault(token, self.size)
            if place == len(self.ids):
                more = (0, place + 1)
                self._keep(np.pad(self.ids, more), np.pad(self.counts, more))
            self.ids[place] = token
            self.counts[place] += 1
        self._counted = len(sequence.tokens)

    def _keep(self, ids: npt.NDArray[np.int64], counts: npt.NDArray[np.float32]) -> None:
        self.ids, self.counts = ids, counts
        self.addresses = ids.ctypes.data, counts.ctypes.data


class PenaltyTable:
    """The `Occurrences` of the sequences that have penalties."""

    def __init__(self) -> None:
        self._occurrences: dict[int, Occurrences] = {}

    def of(self, sequence: Sequence) -> Occurrences:
        occurrences = self._occurrences.get(sequence.id)
        if occurrences is None:
            occurrences = self._occurrences[sequence.id] = Occurrences(sequence)
        occurrences.follow(sequence)
        return occurrences

    def drop(self, sequence_id: int) -> None:
        """Drop a sequence that has ended."""
        self._occurrences.pop(sequence_id, None)

    def __len__(self) -> int:
        """Number of sequences whose tokens are counted."""
        return len(self._occurrences)


def penalize(scores: Tensor, rows: list[int], occurred: list[Occurrences], penalties: npt.NDArray[np.float32]) -> None:
    """Apply penalties to `scores` in place.

    Args:
        scores: (N, vocabulary), contiguous.
        rows: R rows of `scores`, in the order of `occurred`.
        penalties: (3, R): repetition, presence, frequency. Repetition counts the prompt's tokens too, as transformers
            does; the others count generated tokens only, as OpenAI does.
    """
    sizes = [each.size for each in occurred]
    ids = np.concatenate([each.ids[: each.size] for each in occurred])
    counts = np.concatenate([each.counts[: each.size] for each in occurred])
    repetition, presence, frequency = np.repeat(penalties, sizes, axis=1)
    ids += np.repeat(np.array(rows) * scores.shape[1], sizes)
    places, factor, less = (
        upload(array, scores.device) for array in (ids, repetition, frequency * counts + presence * (counts > 0))
    )
    flat = scores.view(-1)  # one index per number: indexing by row and token is many times as slow
    picked = flat.index_select(0, places)
    flat.index_copy_(0, places, torch.where(picked > 0, picked / factor, picked * factor) - less)


def penalties_of(params: list[SamplingParams]) -> npt.NDArray[np.float32]:
    """(3, R), as `penalize` takes them; repetition is clamped so that scores stay within fp32's range."""
    rows = [(min(max(p.repetition_penalty, 1 / _MOST), _MOST), p.presence_penalty, p.frequency_penalty) for p in params]
    return np.array(rows, np.float32).reshape(-1, 3).T
