"""Passes over whole rows of scores for choosing tokens, with torch. Runs in the engine process.

A vocabulary can have 150,000 tokens: the greatest score of each block of them is found once, and later passes look only
into the blocks that matter.
"""

from __future__ import annotations

import functools
from typing import Final

import torch
from torch import Tensor

#: Tokens of a block; the last block of a row may be shorter.
BLOCK: Final = 64


class Scan:
    """Rows of scores (R, vocabulary), fp32, with figures that are computed on first use."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores

    @functools.cached_property
    def maxima(self) -> Tensor:
        """(R, blocks), each block's greatest score."""
        rows, vocabulary = self.scores.shape
        whole = vocabulary // BLOCK * BLOCK
        maxima = [self.scores[:, :whole].view(rows, -1, BLOCK).amax(-1)] if whole else []
        if whole < vocabulary:
            maxima.append(self.scores[:, whole:].amax(-1, keepdim=True))
        return torch.cat(maxima, 1)

    @functools.cached_property
    def greatest(self) -> Tensor:
        """(R,), each row's greatest score."""
        return self.maxima.amax(-1)

    @functools.cached_property
    def log_mass(self) -> Tensor:
        """(R,), the logarithm of the sum of exp(score - the row's greatest)."""
        return (self.scores - self.greatest[:, None]).logsumexp(-1)

    def logprobs(self, scores: Tensor, rows: Tensor) -> Tensor:
        """Log-probabilities of scores (len(rows), K) of some rows. Subtracts the greatest first, to be exact near 0."""
        return scores - self.greatest[rows, None] - self.log_mass[rows, None]

    def best(self, rows: Tensor) -> Tensor:
        """(len(rows),) ids of some rows' greatest scores, the lowest among equals."""
        block = self.maxima[rows].argmax(-1, keepdim=True)  # the first of the greatest
        ids = block * BLOCK + torch.arange(BLOCK, device=rows.device)
        inside = self.scores[
            rows[:, None], ids.clamp(max=self.scores.shape[1] - 1)
        ]  # its last again, which is no first
        return block[:, 0] * BLOCK + inside.argmax(-1)

    def best_of(self, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Scores and ids (len(rows), width) of some rows' greatest scores, best first, the lower id among equals.

        Args:
            width: at most the vocabulary.
        """
        vocabulary = self.scores.shape[1]
        if width * 4 > vocabulary // BLOCK:  # most blocks would be read
            return _leading(self.scores[rows], width)
        # The greatest tokens are in the blocks with the greatest maxima, the first of them among equals.
        blocks = _leading(self.maxima[rows], width)[1].sort(dim=-1).values
        ids = (blocks[:, :, None] * BLOCK + torch.arange(BLOCK, device=rows.device)).flatten(1)
        values = self.scores[rows[:, None], ids.clamp(max=vocabulary - 1)]
        values, places = _leading(values.masked_fill_(ids >= vocabulary, float("-inf")), width)
        return values, ids.gather(1, places)


def _leading(values: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The greatest of each row's values (R, K) and their places, the first among equals."""
    greatest, places = values.sort(dim=-1, descending=True, stable=True)
    return greatest[:, :width], places[:, :width]
