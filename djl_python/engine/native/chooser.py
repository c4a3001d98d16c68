"""A Chooser on the native kernels. Runs in the engine process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..choosing import Chosen, Top
from ..draws import Draws, draw
from ..penalties import Occurrences, penalize, penalties_of
from ..row_scan import mix, scan_rows
from ..sampling_plan import Plan, inverse_temperature, is_unbounded, samples
from ..sequence import NO_TOKEN
from .operations import choose
from .pool import CHOICE, Op, Pool, Step

# Below this many logits the calling thread is done before another one is awake.
_SHARED_FROM: Final = 400_000
_GIVEN, _BEST, _DRAW, _NOISE = range(4)


class NativeChooser:
    """Chooses tokens with a program's threads, or with the calling thread alone where there are few logits.

    Args:
        maxima_of: address of the maxima of each panel of logits, if the lm_head's product recorded them; else None.
    """

    def __init__(self, pool: Pool, maxima_of: Callable[[Tensor], int | None] = lambda _: None) -> None:
        self._pool = pool
        self._maxima_of = maxima_of
        self._alone = Pool(1)
        self._table: _Table | None = None

    def choose(
        self,
        logits: Tensor,
        changed: Tensor | None,
        plan: Plan,
        positions: list[int],
        occurred: list[Occurrences],
    ) -> Chosen:
        if self._table is None or self._table.plan is not plan:
            self._table = _Table(plan, logits.shape[1])
        table = self._table
        table.positions[:] = positions
        if occurred:
            table.tell(occurred)
        if table.typical:
            table.choices["token"][table.typical] = table.draw_typical(logits, changed, occurred)
        return self._run(logits, changed, table.asked)

    def look_up(self, logits: Tensor, token_ids: list[int], alternatives: int) -> Chosen:
        choices = _choices(len(logits))
        choices["mode"] = _GIVEN
        choices["wants_logprob"] = 1
        choices["token"] = token_ids
        choices["alternatives"] = min(alternatives, logits.shape[1])
        return self._run(logits, None, _Asked(choices))

    def close(self) -> None:
        """Close its own pool; the other one belongs to the program."""
        self._alone.close()

    def _run(self, logits: Tensor, changed: Tensor | None, asked: _Asked) -> Chosen:
        rows, vocabulary = logits.shape
        choices, logprobs, token_ids = asked.addresses
        operation = choose(
            n=vocabulary, in_=logits.data_ptr(), maxima=self._maxima_of(logits),
            changed=None if changed is None else changed.data_ptr(), choices=choices,
            max_alternatives=asked.max_alternatives, logprobs=logprobs, token_ids=token_ids,
        )  # fmt: skip
        pool = self._pool if rows * vocabulary >= _SHARED_FROM else self._alone
        pool.run((Op * 1)(operation), 1, Step(wanted=rows))
        return Chosen(asked.tokens.tolist(), asked.logprobs.tolist(), asked.tops())


class _Asked:
    """Choices, as the kernels read them and fill them in, and buffers for their alternatives.

    It is read after every step, with cold processor caches, so what can be computed beforehand is computed once here.
    """

    def __init__(self, choices: npt.NDArray[Any]) -> None:
        counts = choices["alternatives"]
        self.max_alternatives = int(counts.max())
        self.tokens, self.logprobs = choices["token"], choices["logprob"]
        self._values = np.empty((len(choices), self.max_alternatives), np.float32)
        self._ids = np.empty((len(choices), self.max_alternatives), np.int64)
        self._counts = [(row, count) for row, count in enumerate(counts.tolist()) if count]
        self._none: list[Top] = [()] * len(choices)
        self.addresses = choices.ctypes.data, self._values.ctypes.data, self._ids.ctypes.data

    def tops(self) -> list[Top]:
        """The alternatives of each row, best first."""
        found = self._none.copy()
        for row, count in self._counts:
            found[row] = tuple(zip(self._ids[row, :count].tolist(), self._values[row, :count].tolist(), strict=True))
        return found


class _Table:
    """The choices of a plan, kept from step to step.

    Attributes:
        typical: rows with typical_p sampling, which has no native operation: torch draws their tokens, and the kernels
            are given these.
    """

    def __init__(self, plan: Plan, vocabulary: int) -> None:
        self.plan = plan
        self._vocabulary = vocabulary
        params = plan.params
        drawn = [samples(p) for p in params]
        self.typical = [row for row, p in enumerate(params) if p.typical_p < 1 and drawn[row]]
        self.choices = choices = _choices(len(params))
        choices["changed"][plan.changed] = range(len(plan.changed))
        choices["seed"] = mix(np.array([p.seed for p in params], np.uint64))
        choices["mode"] = np.where(drawn, _DRAW, _BEST)
        choices["mode"][self.typical] = _GIVEN
        choices["mode"][[row for row, p in enumerate(params) if is_unbounded(p)]] = _NOISE
        choices["wants_logprob"] = [p.logprobs for p in params]
        choices["alternatives"] = [min(p.top_logprobs, vocabulary) if p.logprobs else 0 for p in params]
        choices["top_k"] = [p.top_k if p.top_k < vocabulary else 0 for p in params]
        choices["top_p"] = [p.top_p for p in params]
        choices["min_p"] = [p.min_p for p in params]
        choices["inverse_temperature"] = [inverse_temperature(p) for p in params]
        choices["repetition"], choices["presence"], choices["frequency"] = penalties_of(params)
        self.positions = choices["position"]
        self.asked = _Asked(choices)
        self._occurred: list[tuple[int, int]] = []

    def tell(self, occurred: list[Occurrences]) -> None:
        """Point the penalized rows' choices at the tokens that have occurred."""
        rows = self.plan.penalized
        self.choices["occurrences"][rows] = [each.size for each in occurred]
        addresses = [each.addresses for each in occurred]
        if addresses != self._occurred:
            self.choices["occurred"][rows], self.choices["counts"][rows] = np.array(addresses).T
            self._occurred = addresses

    @functools.cached_property
    def _draws(self) -> Draws:
        typical = [self.plan.params[row] for row in self.typical]
        return Draws(list(range(len(typical))), typical, self._vocabulary, torch.device("cpu"))

    def draw_typical(self, logits: Tensor, changed: Tensor | None, occurred: list[Occurrences]) -> list[int]:
        """Token ids of the typical rows, drawn by torch."""
        own = self.choices[self.typical]
        places = own["changed"].tolist()
        rows = zip(self.typical, places, strict=True)
        scores = torch.stack([logits[row] if changed is None or place < 0 else changed[place] for row, place in rows])
        for row, each in zip(self.plan.penalized, occurred, strict=True):
            if row in self.typical:
                penalize(scores, [self.typical.index(row)], [each], penalties_of([self.plan.params[row]]))
        states = mix(own["seed"] + own["position"].astype(np.uint64))
        scan = scan_rows(scores, 1 / self._draws.temperature[:, 0])
        drawn = draw(scores, scan, self._draws, states)
        drawn.masked_fill_(scores.gather(1, drawn[:, None])[:, 0].isnan(), NO_TOKEN)
        tokens: list[int] = drawn.tolist()
        return tokens


def _choices(rows: int) -> npt.NDArray[Any]:
    made = np.zeros(rows, CHOICE)
    made["changed"] = -1
    return made
