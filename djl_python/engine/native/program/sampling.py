"""A Chooser on the native kernels. Runs in the engine process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ...batch.sequence import NO_TOKEN
from ...sampling.choosing import Asked, Chosen
from ...sampling.draws import Draws, draw
from ...sampling.penalties import Occurrences, penalize, penalties_of
from ...sampling.row_scan import scan_rows
from ..thread_pool import Op, Pool, Step
from .operations import choose
from .row_sampling import Choices, PlannedChoices

# Below this many logits the calling thread is done before another one is awake.
_SHARED_FROM: Final = 400_000


class NativeChooser:
    """Chooses tokens with a program's threads, or with the calling thread alone where there are few logits.

    Args:
        maxima_of: address of the maxima of each panel of logits, if the lm_head's product recorded them; else None.
    """

    def __init__(self, pool: Pool, maxima_of: Callable[[Tensor], int | None] = lambda _: None) -> None:
        self._pool = pool
        self._maxima_of = maxima_of
        self._alone = Pool(1)
        self._choices: PlannedChoices | None = None
        self._typical: Draws | None = None

    def choose(self, logits: Tensor, changed: Tensor | None, asked: Asked) -> Chosen:
        if self._choices is None or self._choices.plan is not asked.plan:
            self._choices = PlannedChoices(asked.plan, logits.shape[1])
            self._typical = _draws_of(self._choices, logits.shape[1])
        choices = self._choices
        choices.tell(asked)
        if self._typical is not None:
            choices.tokens[choices.typical] = _draw_typical(choices, self._typical, logits, changed, asked.occurred)
        return self._run(logits, changed, choices)

    def look_up(self, logits: Tensor, token_ids: list[int], alternatives: int) -> Chosen:
        return self._run(logits, None, Choices.of_given(token_ids, min(alternatives, logits.shape[1])))

    def close(self) -> None:
        """Close its own pool; the other one belongs to the program."""
        self._alone.close()

    def _run(self, logits: Tensor, changed: Tensor | None, choices: Choices) -> Chosen:
        rows, vocabulary = logits.shape
        operation = choose(
            n=vocabulary, in_=logits.data_ptr(), maxima=self._maxima_of(logits),
            changed=None if changed is None else changed.data_ptr(), choices=choices.address,
            max_alternatives=choices.max_alternatives, logprobs=choices.logprobs_address,
            token_ids=choices.ids_address,
        )  # fmt: skip
        pool = self._pool if rows * vocabulary >= _SHARED_FROM else self._alone
        pool.run((Op * 1)(operation), 1, Step(wanted=rows))
        return choices.chosen()


def _draws_of(choices: PlannedChoices, vocabulary: int) -> Draws | None:
    typical = [choices.plan.params[row] for row in choices.typical]
    return Draws(list(range(len(typical))), typical, vocabulary, torch.device("cpu")) if typical else None


def _draw_typical(
    choices: PlannedChoices, draws: Draws, logits: Tensor, changed: Tensor | None, occurred: list[Occurrences]
) -> list[int]:
    """Token ids of the typical rows, drawn by torch."""
    typical, plan = choices.typical, choices.plan
    rows = zip(typical, choices.array["changed"][typical].tolist(), strict=True)
    scores = torch.stack([logits[row] if changed is None or place < 0 else changed[place] for row, place in rows])
    for row, each in zip(plan.penalized, occurred, strict=True):
        if row in typical:
            penalize(scores, [typical.index(row)], [each], penalties_of([plan.params[row]]))
    scan = scan_rows(scores, 1 / draws.temperature[:, 0])
    drawn = draw(scores, scan, draws, choices.states[typical])
    drawn.masked_fill_(scores.gather(1, drawn[:, None])[:, 0].isnan(), NO_TOKEN)
    tokens: list[int] = drawn.tolist()
    return tokens
