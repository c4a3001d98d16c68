"""A RowSampler on the native kernels. Runs in the engine process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ...sampling.draws import Draws, draw
from ...sampling.penalties import Occurrences, penalize, penalties_of
from ...sampling.row_sampler import SampledTokens, SamplingRequest
from ...sampling.row_scan import Scan
from ..abi.operations import OperationArray
from ..abi.sampling import SampleOp
from ..abi.step_inputs import StepInputs
from ..thread_pool import ThreadPool
from .row_sampling import PlannedSamplings, RowSamplings

# Below this many logits the calling thread is done before another one is awake.
_SHARED_FROM: Final = 400_000


class NativeRowSampler:
    """Chooses tokens with a program's threads, or with the calling thread alone where there are few logits.

    Args:
        maxima_of: address of the maxima of each panel of logits, if the lm_head's product recorded them; else None.
    """

    def __init__(self, pool: ThreadPool, maxima_of: Callable[[Tensor], int | None] = lambda _: None) -> None:
        self._pool = pool
        self._maxima_of = maxima_of
        self._alone = ThreadPool(1)
        self._samplings: PlannedSamplings | None = None
        self._typical: Draws | None = None

    def choose(self, logits: Tensor, changed: Tensor | None, asked: SamplingRequest) -> SampledTokens:
        if self._samplings is None or self._samplings.plan is not asked.plan:
            self._samplings = PlannedSamplings(asked.plan, logits.shape[1])
            self._typical = _draws_of(self._samplings, logits.shape[1])
        samplings = self._samplings
        samplings.update(asked)
        if self._typical is not None:
            samplings.tokens[samplings.typical] = _draw_typical(
                samplings, self._typical, logits, changed, asked.occurred
            )
        return self._run(logits, changed, samplings)

    def look_up(self, logits: Tensor, token_ids: list[int], alternatives: int) -> SampledTokens:
        return self._run(logits, None, RowSamplings.of_given(token_ids, min(alternatives, logits.shape[1])))

    def close(self) -> None:
        """Close its own pool; the other one belongs to the program."""
        self._alone.close()

    def _run(self, logits: Tensor, changed: Tensor | None, samplings: RowSamplings) -> SampledTokens:
        rows, vocabulary = logits.shape
        operation = SampleOp(
            n=vocabulary, in_=logits.data_ptr(), maxima=self._maxima_of(logits),
            changed=None if changed is None else changed.data_ptr(), samplings=samplings.address,
            alternatives=samplings.alternatives,
        )  # fmt: skip
        pool = self._pool if rows * vocabulary >= _SHARED_FROM else self._alone
        pool.run(OperationArray([operation]), StepInputs(wanted=rows))
        return samplings.chosen()


def _draws_of(samplings: PlannedSamplings, vocabulary: int) -> Draws | None:
    typical = [samplings.plan.params[row] for row in samplings.typical]
    return Draws(list(range(len(typical))), typical, vocabulary, torch.device("cpu")) if typical else None


def _draw_typical(
    samplings: PlannedSamplings, draws: Draws, logits: Tensor, changed: Tensor | None, occurred: list[Occurrences]
) -> list[int]:
    """Token ids of the typical rows, drawn by torch."""
    typical, plan = samplings.typical, samplings.plan
    rows = zip(typical, samplings.array["changed"][typical].tolist(), strict=True)
    scores = torch.stack([logits[row] if changed is None or place < 0 else changed[place] for row, place in rows])
    for row, each in zip(plan.penalized, occurred, strict=True):
        if row in typical:
            penalize(scores, [typical.index(row)], [each], penalties_of([plan.params[row]]))
    tokens: list[int] = draw(Scan(scores), draws, samplings.keys[typical]).tolist()
    return tokens
