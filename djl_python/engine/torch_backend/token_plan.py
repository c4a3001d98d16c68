"""A step's plan whose numbers lie where a recorded step reads them. Runs in the engine process, on GPUs.

All numbers of a step are in one tensor, so that the host copies them at once. A step that has fewer tokens than were
recorded is filled up by tokens of a spare block, which nobody reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ..attention.parameters import AttentionParams
from ..batch.chunk import SequenceChunk
from ..devices.transfers import upload

#: Attention of a flat batch's tokens: `token_attention.attend_by_token`.
AttendByToken = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, AttentionParams], Tensor]

# Numbers of each token: its id, its position, its slot in the cache, and where its sequence's blocks begin.
_OF_TOKEN: Final = 4


class TokenPlan:
    """A `StepPlan` of a fixed number of tokens and of rows with logits.

    Args:
        numbers: int64, on the device, for at least `numbers_for` this many tokens and rows, and all blocks of a step.
        rows: how many positions' logits are wanted.

    Attributes:
        ids, positions, slots: (tokens,); keep: (rows,) the positions in the flat batch whose logits are wanted.
    """

    def __init__(self, numbers: Tensor, tokens: int, rows: int, block_size: int, spare_block: int, by: AttendByToken):
        self.order: list[SequenceChunk] = []
        self.tokens, self.rows = tokens, rows
        self._numbers = numbers
        self._block_size = block_size
        self._spare_block = spare_block
        self._by_token = by
        self.ids, self.positions, self.slots, self._starts = numbers[: _OF_TOKEN * tokens].view(_OF_TOKEN, tokens)
        self.keep = numbers[_OF_TOKEN * tokens : numbers_for(tokens, rows)]
        self._blocks = numbers[numbers_for(tokens, rows) :]

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, how: AttentionParams) -> Tensor:
        """`AttentionPlan` describes it."""
        return self._by_token(query, keys, values, self.positions, self._starts, self._blocks, how)

    def fill(self, chunks: list[SequenceChunk], keep: npt.NDArray[np.int64]) -> bool:
        """Have the next replay compute these chunks, one after the other, and the logits of `keep`.

        Returns:
            Whether there was room; without it, nothing has changed.
        """
        size = self._block_size
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts: list[int] = []
        blocks = [self._spare_block]
        for chunk in chunks:
            own, first = chunk.sequence.blocks, chunk.sequence.computed
            places = range(first, first + chunk.length)
            ids += chunk.tokens
            positions += places
            slots += [own[place // size] * size + place % size for place in places]
            starts += itertools.repeat(len(blocks), chunk.length)
            blocks += own[: -(-places.stop // size)]
        if len(ids) > self.tokens or len(keep) > self.rows or len(blocks) > len(self._blocks):
            return False
        spare = self.tokens - len(ids)
        numbers = np.zeros(numbers_for(self.tokens, self.rows) + len(blocks), np.int64)
        of_tokens = numbers[: _OF_TOKEN * self.tokens].reshape(_OF_TOKEN, self.tokens)
        of_tokens[:, : len(ids)] = ids, positions, slots, starts
        of_tokens[2, self.tokens - spare :] = self._spare_block * size
        numbers[_OF_TOKEN * self.tokens :][: len(keep)] = keep
        numbers[numbers_for(self.tokens, self.rows) :] = blocks
        # From memory that isn't pinned: it has been read when this returns (`devices.transfers`).
        self._numbers[: len(numbers)].copy_(upload(numbers, self._numbers.device), non_blocking=True)
        return True


def numbers_for(tokens: int, rows: int) -> int:
    """How many numbers a plan has before its blocks."""
    return _OF_TOKEN * tokens + rows
