"""How each row's token is sampled, as the kernels read it and fill it in. Runs in the engine process."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...sampling.gumbel import keys_of, mix
from ...sampling.penalties import penalties_of
from ...sampling.row_sampler import SampledTokens, SamplingRequest, Top
from ...sampling.sampling_plan import SamplingPlan, inverse_temperature, samples
from ..abi.enums import SamplingMode
from ..abi.parts import Alternatives
from ..abi.step_inputs import RowSampling

_DTYPE: Final = np.dtype(RowSampling)


class RowSamplings:
    """How rows' tokens are sampled, and buffers for their alternatives.

    They are read after every step, with cold processor caches: what can be computed beforehand is computed once here.

    Attributes:
        array: (rows,) of RowSampling.
        tokens: (rows,) what was sampled.
        alternatives: where the kernels put them.
    """

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array
        counts = array["alternatives"]
        most = int(counts.max())
        self.tokens, self._logprobs = array["token"], array["logprob"]
        self._values = np.empty((len(array), most), np.float32)
        self._ids = np.empty((len(array), most), np.int64)
        self._counts = [(row, count) for row, count in enumerate(counts.tolist()) if count]
        self._none: list[Top] = [()] * len(array)
        self.address = array.ctypes.data
        self.alternatives = Alternatives(count=most, logprobs=self._values.ctypes.data, token_ids=self._ids.ctypes.data)

    def chosen(self) -> SampledTokens:
        """What the kernels have chosen."""
        tops = self._none.copy()
        for row, count in self._counts:
            tops[row] = tuple(zip(self._ids[row, :count].tolist(), self._values[row, :count].tolist(), strict=True))
        return SampledTokens(self.tokens.tolist(), self._logprobs.tolist(), tops)

    @classmethod
    def of_given(cls, tokens: list[int], alternatives: int) -> RowSamplings:
        """Log-probabilities and alternatives of known tokens."""
        array = _unchanged(len(tokens))
        array["mode"] = SamplingMode.GIVEN
        array["wants_logprob"] = 1
        array["token"] = tokens
        array["alternatives"] = alternatives
        return cls(array)


class PlannedSamplings(RowSamplings):
    """The samplings of a plan, kept from step to step.

    Attributes:
        typical: rows with typical_p sampling, which has no native operation: the kernels are given their tokens.
        keys: (rows,) of each draw's noise.
    """

    def __init__(self, plan: SamplingPlan, vocabulary: int) -> None:
        self.plan = plan
        params = plan.params
        drawn = [samples(p) for p in params]
        self.typical = [row for row, p in enumerate(params) if p.typical_p < 1 and drawn[row]]
        array = _unchanged(len(params))
        array["changed"][plan.changed] = range(len(plan.changed))
        array["mode"] = np.where(drawn, SamplingMode.DRAW, SamplingMode.BEST)
        array["mode"][self.typical] = SamplingMode.GIVEN
        array["wants_logprob"] = [p.logprobs for p in params]
        array["alternatives"] = [min(p.top_logprobs, vocabulary) if p.logprobs else 0 for p in params]
        array["top_k"] = [p.top_k if p.top_k < vocabulary else 0 for p in params]
        array["top_p"] = [p.top_p for p in params]
        array["min_p"] = [p.min_p for p in params]
        array["inverse_temperature"] = [inverse_temperature(p) for p in params]
        array["repetition"], array["presence"], array["frequency"] = penalties_of(params)
        super().__init__(array)
        self._draw = any(drawn)
        self.keys = np.zeros(len(params), np.uint64)
        self._mixed_seeds = mix(np.array([p.seed for p in params], np.uint64))
        self._occurred: list[tuple[int, int]] = []

    def update(self, asked: SamplingRequest) -> None:
        """Tell where the draws are, and what has occurred; the plan is the same."""
        if self._draw:
            self.keys = keys_of(self._mixed_seeds, asked.positions)
            self.array["keys"] = self.keys.view(np.uint32).reshape(-1, 2)
        if not asked.occurred:
            return
        rows = self.plan.penalized
        self.array["occurrences"][rows] = [each.size for each in asked.occurred]
        addresses = [each.addresses for each in asked.occurred]
        if addresses != self._occurred:
            self.array["occurred"][rows], self.array["counts"][rows] = np.array(addresses).T
            self._occurred = addresses


def _unchanged(rows: int) -> npt.NDArray[Any]:
    array = np.zeros(rows, _DTYPE)
    array["changed"] = -1
    return array
