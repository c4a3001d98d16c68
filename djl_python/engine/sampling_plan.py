"""A batch's sampling parameters as tensors. Runs in the engine process; made anew when the batch's members change."""

from __future__ import annotations

from collections.abc import Sized

import numpy as np
import torch
from torch import Tensor

from ..types import SamplingParams
from .row_scan import Bounds


class Plan:
    """Who draws how. Rows are the batch's.

    Attributes:
        ids: the batch's members, by which it is known to be the same.
        plain: rows that draw from the model's own scores; changed: those whose scores some rule changes first.
        inverse_temperature: (N,) of the plain rows, 1 for the others; None if no plain row is sampled.
        changed_inverse_temperature: the same of the changed rows, for the scores that are theirs alone.
        tops: (row, how many) of those who want alternatives.
    """

    def __init__(self, ids: list[int], params: list[SamplingParams], vocabulary: int, device: torch.device) -> None:
        self.ids = ids
        changed = [row for row, p in enumerate(params) if _changes(p)]
        plain = sorted(set(range(len(params))) - set(changed))
        self.plain = Group(plain, plain, params, vocabulary, device)
        self.changed = Group(changed, list(range(len(changed))), params, vocabulary, device)
        self.changes = Changes([params[row] for row in changed], device)
        self.inverse_temperature = self.plain.inverse_temperature(len(params))
        self.changed_inverse_temperature = self.changed.inverse_temperature(len(changed))
        self.tops = [(row, p.top_logprobs) for row, p in enumerate(params) if p.top_logprobs]


class Group:
    """Rows that draw from the same tensor of scores.

    Attributes:
        batch_rows, batch_index: where the batch has them.
        greedy, greedy_rows: rows that take the best, in the batch and in the scores.
        draws, draw_rows: how the others draw, and their rows in the batch; None if there are none.
    """

    def __init__(
        self,
        batch_rows: list[int],
        rows: list[int],
        params: list[SamplingParams],
        vocabulary: int,
        device: torch.device,
    ) -> None:
        self.batch_rows = batch_rows
        self.batch_index = indices(batch_rows, device)
        greedy: list[tuple[int, int]] = []
        sampled: list[tuple[int, int]] = []
        for pair in zip(batch_rows, rows, strict=True):
            (sampled if _samples(params[pair[0]]) else greedy).append(pair)
        self.greedy = indices([row for row, _ in greedy], device)
        self.greedy_rows = indices([row for _, row in greedy], device)
        self.draw_rows = [row for row, _ in sampled]
        chosen = [params[row] for row in self.draw_rows]
        self.draws = Draws([row for _, row in sampled], chosen, vocabulary, device) if sampled else None

    def inverse_temperature(self, rows: int) -> Tensor | None:
        """(rows,), 1 where nobody draws; None if nobody does."""
        if self.draws is None:
            return None
        made = torch.ones(rows, device=self.batch_index.device)
        made[self.draws.rows] = 1 / self.draws.temperature[:, 0]
        return made


class Draws:
    """Draws with random numbers, D of them.

    Attributes:
        rows: (D,) of the scores.
        seeds: (D,).
        temperature, top_k, top_p, min_p, typical_p: (D, 1).
        ranked, typical, weighed: which are bound by ranks, by how typical tokens are, by weights or not at all.
        bounds: of the weighed.
    """

    def __init__(self, rows: list[int], params: list[SamplingParams], vocabulary: int, device: torch.device) -> None:
        self.rows = indices(rows, device)
        self.seeds = np.array([p.seed for p in params], np.uint64)
        numbers = [
            (p.temperature, min(p.top_k or vocabulary, vocabulary), p.top_p, p.min_p, p.typical_p) for p in params
        ]
        self.temperature, self.top_k, self.top_p, self.min_p, self.typical_p = _columns(numbers, 5, device)
        ranked = [bool(p.top_k) or (p.typical_p < 1 and (p.top_p < 1 or p.min_p > 0)) for p in params]
        self.ranked = indices([i for i, needed in enumerate(ranked) if needed], device)
        self.typical = indices([i for i, p in enumerate(params) if p.typical_p < 1 and not ranked[i]], device)
        self.weighed_places = [i for i, p in enumerate(params) if p.typical_p >= 1 and not ranked[i]]
        self.weighed = indices(self.weighed_places, device)
        self.bounds = Bounds(self.top_p[self.weighed, 0], self.min_p[self.weighed, 0])


class Changes:
    """What changes the scores of the changed rows, which are counted from 0 here.

    Attributes:
        biased_rows, biased_ids, bias: one entry for each token with a bias.
        constrained: rows with a grammar; restricted: rows that some token may be banned from now and then; penalized:
            rows whose tokens so far count.
    """

    def __init__(self, params: list[SamplingParams], device: torch.device) -> None:
        biased = [(row, token, bias) for row, p in enumerate(params) for token, bias in p.logit_bias.items()]
        self.biased_rows, self.biased_ids = indices([entry[:2] for entry in biased], device).view(-1, 2).T
        self.bias = torch.tensor([bias for _, _, bias in biased], dtype=torch.float32, device=device)
        self.constrained = [row for row, p in enumerate(params) if p.grammar is not None]
        self.constrained_rows = indices(self.constrained, device)
        self.restricted = [row for row, p in enumerate(params) if _restricts(p)]
        self.penalized = [row for row, p in enumerate(params) if _penalizes(p)]
        self.penalized_rows = indices(self.penalized, device)
        penalties = [(p.repetition_penalty, p.presence_penalty, p.frequency_penalty) for p in params]
        self.penalties = _columns([penalties[row] for row in self.penalized], 3, device)


def indices(numbers: Sized, device: torch.device) -> Tensor:
    """Whole numbers to index with."""
    return torch.tensor(numbers, dtype=torch.long, device=device)


def _columns(rows: Sized, width: int, device: torch.device) -> Tensor:
    """(width, R, 1): one number per row, to be broadcast along the vocabulary, of each parameter."""
    return torch.tensor(rows, dtype=torch.float32, device=device).view(-1, width).T[:, :, None]


def _samples(params: SamplingParams) -> bool:
    return params.do_sample and params.temperature > 0


def _changes(params: SamplingParams) -> bool:
    return bool(params.logit_bias or params.grammar is not None or _restricts(params) or _penalizes(params))


def _restricts(params: SamplingParams) -> bool:
    return bool(params.bad_words_ids or params.min_new_tokens or (params.grammar and params.ignore_eos))


def _penalizes(params: SamplingParams) -> bool:
    return bool(params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty)
