"""Finds the likeliest token of each row after a program's layers. Runs in the engine process."""

from __future__ import annotations

from typing import Final

import numpy as np
from torch import Tensor

from .lay_out_pick import Picking
from .pool import Op, Pool, Step

#: `kUndecided` of pick.h: too many logits may be the greatest.
UNDECIDED: Final = -2
_LONGEST_PAUSE: Final = 1024


class Patience:
    """Whether to try rounded weights: not for a while where they don't decide, as then they only cost time."""

    def __init__(self) -> None:
        self._left = 0
        self._pause = 1

    def tries(self) -> bool:
        """Whether to try them in this step."""
        self._left = max(0, self._left - 1)
        return not self._left

    def learn(self, decided: bool) -> None:
        """Learn whether they have decided every row of a step."""
        self._pause = max(1, self._pause // 2) if decided else min(2 * self._pause, _LONGEST_PAUSE)
        self._left = 0 if decided else self._pause


class Picker:
    """The operations of a step that ends with tokens, and of what follows where these can't be told.

    Args:
        layers: the operations before the lm_head's product, `head`.
    """

    def __init__(self, layers: list[Op], head: Op, picking: Picking) -> None:
        operations = [*layers, *picking.operations]
        self._approximate = (Op * len(operations))(*operations)
        self._exact = (Op * 2)(head, picking.exact)
        self.patience = Patience()

    def run(self, pool: Pool, given: Step, late: Step, logits: Tensor, maxima: Tensor) -> list[int]:
        """Run a step; returns the likeliest token of each wanted row, or NO_TOKEN.

        Args:
            logits, maxima: room for these rows' logits and their panels' maxima.
        """
        tokens = np.empty(given.wanted, np.int64)
        for product, pick in (self._approximate[-2:], self._exact):
            product.out, product.maxima, pick.maxima = logits.data_ptr(), maxima.data_ptr(), maxima.data_ptr()
            pick.routed = tokens.ctypes.data
        pool.run(self._approximate, len(self._approximate), given, late=late, bf16=True)
        decided = UNDECIDED not in tokens
        self.patience.learn(decided)
        if not decided:
            pool.run(self._exact, len(self._exact), given, late=late, bf16=True)
        found: list[int] = tokens.tolist()
        return found
