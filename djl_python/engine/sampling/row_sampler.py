"""The interface that picks a token for each row of logits. Runs in the engine process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from .penalties import Occurrences
from .sampling_plan import SamplingPlan

#: (id, log-probability) of a row's most likely tokens, best first.
Top = tuple[tuple[int, float], ...]


class SamplingRequest(NamedTuple):
    """The sampling of a step: a token for each row.

    Attributes:
        plan: how each is chosen.
        positions: how many tokens each row's sequence has generated, drafts included. A draw depends on the row's
            scores, parameters, seed and position alone.
        occurred: tokens that have occurred, for each of the rows `plan.penalized`.
    """

    plan: SamplingPlan
    positions: list[int]
    occurred: list[Occurrences]


@dataclass(frozen=True)
class SampledTokens:
    """A token for each row, or `sequence.NO_TOKEN`; its log-probability among the row's logits, and the alternatives
    that were asked for.

    Log-probabilities that were not asked for (`SamplingParams.logprobs`) are arbitrary.
    """

    token_ids: list[int]
    logprobs: list[float]
    tops: list[Top]


class RowSampler(Protocol):
    """Reads whole rows of logits (R, vocabulary), fp32. The result for a row does not depend on the other rows."""

    def choose(self, logits: Tensor, changed: Tensor | None, asked: SamplingRequest) -> SampledTokens:
        """Choose a token for each row: the best one, or one drawn at random.

        Args:
            changed: (len(asked.plan.changed), vocabulary) scores that the rows `plan.changed` choose from instead.
        """
        ...

    def look_up(self, logits: Tensor, token_ids: list[int], alternatives: int) -> SampledTokens:
        """Log-probability and `alternatives` alternatives for a known token in each row."""
        ...
