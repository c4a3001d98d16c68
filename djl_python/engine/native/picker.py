"""Finds each row's next token after a program's layers, without all logits. Runs in the engine process."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ..row_scan import mix
from ..sampling_plan import Plan, inverse_temperature, samples
from .pool import DRAW, Op, Pool, Step

#: `kUndecided` of pick.h: too many logits may be the greatest.
_UNDECIDED: Final = -1
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
    """The operations of a step that ends with tokens.

    Args:
        operations: all of a step, the last two a product that leaves maxima, and what finds the tokens.
    """

    def __init__(self, operations: list[Op]) -> None:
        self._array = (Op * len(operations))(*operations)
        self.patience = Patience()

    def run(
        self, pool: Pool, given: Step, late: Step, maxima: Tensor, draws: npt.NDArray[Any] | None
    ) -> list[int] | None:
        """Run a step; returns the token of each wanted row, or None if not all could be told.

        Args:
            maxima: room for those of these rows' panels.
            draws: (rows,) of dtype DRAW; None: the likeliest tokens are wanted.
        """
        tokens = np.empty(given.wanted, np.int64)
        product, pick = self._array[-2:]
        product.maxima = pick.maxima = maxima.data_ptr()
        product.sinks = pick.sinks = None if draws is None else draws.ctypes.data
        pick.routed = tokens.ctypes.data
        pool.run(self._array, len(self._array), given, late=late, bf16=True)
        decided = bool((tokens != _UNDECIDED).all())
        self.patience.learn(decided)
        return tokens.tolist() if decided else None


class DrawTable:
    """How the rows of a plan are drawn, kept from step to step."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        noisy = [samples(p) for p in plan.params]
        self._draws: npt.NDArray[Any] | None = None
        if not any(noisy):
            return
        self._draws = np.zeros(len(noisy), DRAW)
        self._draws["noisy"] = noisy
        self._draws["inverse_temperature"] = [inverse_temperature(p) for p in plan.params]
        self._seeds = mix(np.array([p.seed for p in plan.params], np.uint64))

    def at(self, positions: list[int]) -> npt.NDArray[Any] | None:
        """(rows,) of dtype DRAW, for tokens at these positions; None if all rows take their likeliest tokens."""
        if self._draws is not None:
            keys = mix(self._seeds + np.array(positions, np.uint64))
            self._draws["keys"] = keys.view(np.uint32).reshape(-1, 2)
        return self._draws
