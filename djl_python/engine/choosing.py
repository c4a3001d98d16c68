"""Which token follows each row of logits, and what the model thought of it. Runs in the engine process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from .penalties import Occurrences
from .sampling_plan import Plan

#: (id, log-probability) of a row's most likely tokens, best first.
Top = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Chosen:
    """A token for each row, its log-probability among the row's logits, and the alternatives that were asked for.

    Log-probabilities that nobody reads (`SamplingParams.logprobs`) are any numbers.
    """

    token_ids: list[int]
    logprobs: list[float]
    tops: list[Top]


class Chooser(Protocol):
    """Reads whole rows of logits (R, vocabulary), fp32. What it makes of a row does not depend on the other rows."""

    def choose(
        self,
        logits: Tensor,
        changed: Tensor | None,
        plan: Plan,
        positions: list[int],
        occurred: list[Occurrences],
    ) -> Chosen:
        """A token for each row: the best, or drawn.

        Args:
            changed: scores of `plan.changed`'s rows (len(plan.changed), vocabulary), from which they choose instead.
            positions: how many tokens each row's sequence has generated, drafts included: what is drawn follows from a
                row's scores, parameters, seed and position alone.
            occurred: of `plan.penalized`'s rows.
        """
        ...

    def look_up(self, logits: Tensor, token_ids: list[int], alternatives: int) -> Chosen:
        """The same of tokens that are known, one for each row."""
        ...
