"""Samples each row's next token after a program's layers, without all logits. Runs in the engine process."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ...sampling.row_sampler import SampledTokens
from ..abi.decoder import LinearOp
from ..abi.enums import PANEL, UNDECIDED
from ..abi.operations import OperationArray
from ..abi.parts import PanelStatistics
from ..abi.sampling import RescoreOp
from ..abi.step_inputs import StepInputs
from ..abi.structures import Operation
from ..thread_pool import ThreadPool
from .row_sampling import RowSamplings

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


class Rescorer:
    """The operations of a step that ends with tokens.

    Args:
        operations: all of a step, the last two a product that keeps panels' statistics, and what samples the tokens.
    """

    def __init__(self, operations: list[Operation]) -> None:
        self._array = OperationArray(operations)
        self._product, self._rescore = self._array.view(-2, LinearOp), self._array.view(-1, RescoreOp)
        self._make_room(0)
        self.patience = Patience()

    def run(
        self, pool: ThreadPool, given: StepInputs, late: StepInputs, samplings: RowSamplings, room: Tensor
    ) -> SampledTokens | None:
        """Run a step; returns what is sampled for each wanted row, or None if not all could be told.

        Args:
            samplings: without changed scores.
            room: (rows, vocabulary) for logits.
        """
        rows = given.wanted
        if rows > len(self._maxima):
            self._make_room(rows)
        self._product.statistics = self._rescore.statistics = PanelStatistics(
            maxima=self._maxima.data_ptr(), log_masses=self._log_masses.data_ptr(), samplings=samplings.address
        )
        self._rescore.alternatives = samplings.alternatives
        self._rescore.head.output.out = room.data_ptr()
        pool.run(self._array, given, late=late, bf16=True)
        decided = bool((samplings.tokens != UNDECIDED).all())
        self.patience.learn(decided)
        return samplings.chosen() if decided else None

    def _make_room(self, rows: int) -> None:
        """Memory for what is kept of each row's panels."""
        panels = -(-self._product.n // PANEL)
        self._maxima, self._log_masses = torch.empty(rows, panels), torch.empty(rows, 2, panels)
