"""Chooses each row's next token after a program's layers, without all logits. Runs in the engine process."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ...sampling.choosing import Chosen
from ..packing import PANEL
from ..thread_pool import Op, Pool, Step
from .row_sampling import UNDECIDED, Choices

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
        operations: all of a step, the last two a product that screens panels, and what chooses the tokens.
    """

    def __init__(self, operations: list[Op]) -> None:
        self._array = (Op * len(operations))(*operations)
        self._make_room(0)
        self.patience = Patience()

    def run(self, pool: Pool, given: Step, late: Step, choices: Choices, room: Tensor) -> Chosen | None:
        """Run a step; returns what is chosen for each wanted row, or None if not all could be told.

        Args:
            choices: without changed scores.
            room: (rows, vocabulary) for logits.
        """
        rows = given.wanted
        if rows > len(self._maxima):
            self._make_room(rows)
        product, pick = self._array[-2:]
        product.maxima = pick.maxima = self._maxima.data_ptr()
        product.slopes = pick.slopes = self._log_masses.data_ptr()
        product.sinks = pick.sinks = choices.address
        pick.kv_heads = choices.max_alternatives
        pick.values, pick.routed = choices.logprobs_address, choices.ids_address
        pick.out = room.data_ptr()
        pool.run(self._array, len(self._array), given, late=late, bf16=True)
        decided = bool((choices.tokens != UNDECIDED).all())
        self.patience.learn(decided)
        return choices.chosen() if decided else None

    def _make_room(self, rows: int) -> None:
        """Memory for what is kept of each row's panels."""
        panels = -(-self._array[-1].n // PANEL)
        self._maxima, self._log_masses = torch.empty(rows, panels), torch.empty(rows, 2, panels)
