"""How each row of a batch is sampled. Runs in the engine process; made anew when the batch's sequences change."""

from __future__ import annotations

import functools
from typing import Final

import torch
from torch import Tensor

from ...core.types import SamplingParams
from ..devices.transfers import indices, upload

_COLD: Final = 0.01  # below it, scores may have no digits for noise, except next to the greatest
_MOST_RANKED: Final = 64  # of a row's tokens, whose logits are computed one panel of the lm_head after the other
_COLDEST: Final = 1e-37  # the inverse of less may exceed fp32; at or below it, the likeliest token is taken


class SamplingPlan:
    """How each row of the batch is sampled.

    Attributes:
        ids: the sequence of each row; the plan holds while they are the same.
        params: sampling parameters of each row.
        changed: rows whose scores a rule other than penalties changes before the draw.
        penalized: rows with penalties.
        simple: whether few logits suffice for all tokens: those of the best tokens, or of the candidates of draws.
    """

    def __init__(self, ids: list[int], params: list[SamplingParams], device: torch.device) -> None:
        self.ids = ids
        self.params = params
        self.changed = [row for row, p in enumerate(params) if _changes(p)]
        self.penalized = [row for row, p in enumerate(params) if _penalizes(p)]
        self.simple = not self.changed and all(map(_is_simple, params))
        self._device = device

    @functools.cached_property
    def changed_index(self) -> Tensor:
        """`changed` as a tensor (len(changed),)."""
        return indices(self.changed, self._device)

    @functools.cached_property
    def changes(self) -> Changes:
        """What changes the scores of the changed rows."""
        return Changes([self.params[row] for row in self.changed], self._device)


class Changes:
    """The changes of the changed rows' scores. Row numbers count only these, from 0.

    Attributes:
        biased_rows, biased_ids, bias: one entry for each token with a bias.
        constrained: rows with a grammar; restricted: rows where some tokens may be banned at times.
    """

    def __init__(self, params: list[SamplingParams], device: torch.device) -> None:
        biased = [(row, token, bias) for row, p in enumerate(params) for token, bias in p.logit_bias.items()]
        self.biased_rows, self.biased_ids = indices([entry[:2] for entry in biased], device).view(-1, 2).T
        self.bias = upload(torch.tensor([bias for _, _, bias in biased], dtype=torch.float32), device)
        self.constrained = [row for row, p in enumerate(params) if p.grammar is not None]
        self.constrained_rows = indices(self.constrained, device)
        self.restricted = [row for row, p in enumerate(params) if _restricts(p)]


def samples(params: SamplingParams) -> bool:
    """Whether a draw takes a random number."""
    return params.do_sample and params.temperature > _COLDEST


def inverse_temperature(params: SamplingParams) -> float:
    """The factor of scores before a draw; 1 without a draw."""
    return 1 / params.temperature if samples(params) else 1.0


def _is_simple(params: SamplingParams) -> bool:
    if params.logprobs and params.top_logprobs > _MOST_RANKED:
        return False
    # Most tokens only get an upper bound of their score, without penalties: no penalty may raise a score.
    if params.repetition_penalty < 1 or params.presence_penalty < 0 or params.frequency_penalty < 0:
        return False
    if not samples(params):
        return True
    if params.top_k or params.top_p < 1 or params.min_p > 0 or params.typical_p < 1:
        return params.typical_p >= 1 and params.top_k <= _MOST_RANKED
    return params.temperature >= _COLD


def _changes(params: SamplingParams) -> bool:
    return bool(params.logit_bias or params.grammar is not None or _restricts(params))


def _restricts(params: SamplingParams) -> bool:
    return bool(params.bad_words_ids or params.min_new_tokens or (params.grammar and params.ignore_eos))


def _penalizes(params: SamplingParams) -> bool:
    return bool(params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty)
