"""A `RowSampler` made of torch operations, for any device. Runs in the engine process.

Most rows draw from the model's own logits, which are read once and left as they are (`row_scan`, `draws`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...core.types import SamplingParams
from ..batch.sequence import NO_TOKEN
from ..devices.transfers import indices
from .draws import Draws, draw
from .gumbel import keys_of, mix
from .penalties import Occurrences, penalize, penalties_of
from .row_sampler import SampledTokens, SamplingRequest, Top
from .row_scan import Scan
from .sampling_plan import SamplingPlan, samples


class TorchRowSampler:
    """A `RowSampler`."""

    def __init__(self) -> None:
        self._groups: _Groups | None = None

    def choose(self, logits: Tensor, changed: Tensor | None, asked: SamplingRequest) -> SampledTokens:
        plan, positions, occurred = asked
        if self._groups is None or self._groups.plan is not plan:
            self._groups = _Groups(plan, logits)
        groups = self._groups
        tokens = torch.empty(len(logits), dtype=torch.long, device=logits.device)
        scan = Scan(logits)
        _choose(scan, groups.plain, tokens, positions)
        if groups.altered:
            _choose(Scan(groups.alter(logits, changed, occurred)), groups.own, tokens, positions)
        # All of it is on its way to the device before the host waits for the first number.
        own = _logprobs(scan, tokens)
        tokens.masked_fill_(own.isnan(), NO_TOKEN)
        most = max((count for _, count in groups.tops), default=0)
        alternatives = _alternatives(scan, groups.top_rows, most) if groups.tops else None
        tops: list[Top] = [()] * len(logits)
        if alternatives is not None:
            for (row, count), top in zip(groups.tops, _listed(*alternatives), strict=True):
                tops[row] = top[:count]
        return SampledTokens(tokens.tolist(), own.tolist(), tops)

    def look_up(self, logits: Tensor, token_ids: list[int], alternatives: int) -> SampledTokens:
        scan = Scan(logits)
        own = _logprobs(scan, indices(token_ids, logits.device))
        rows = torch.arange(len(logits), device=logits.device)
        tops: list[Top] = [()] * len(logits)
        if alternatives:
            tops = _listed(*_alternatives(scan, rows, alternatives))
        return SampledTokens(token_ids, own.tolist(), tops)


class _Groups:
    """A plan's rows, grouped by the scores that they draw from.

    Attributes:
        altered: rows whose scores a rule or a penalty changes.
        plain: the others, which draw from the model's own logits; own: the altered, from scores of their own.
        tops, top_rows: (row, how many) of the rows that want alternatives.
    """

    def __init__(self, plan: SamplingPlan, logits: Tensor) -> None:
        self.plan = plan
        params, vocabulary, device = plan.params, logits.shape[1], logits.device
        self.altered = sorted({*plan.changed, *plan.penalized})
        plain = [row for row in range(len(params)) if row not in self.altered]
        self.plain = _Group(plain, plain, params, vocabulary, device)
        self.own = _Group(self.altered, list(range(len(self.altered))), params, vocabulary, device)
        self._altered_index = indices(self.altered, device)
        self._changed_places = indices([self.altered.index(row) for row in plan.changed], device)
        self._penalized_places = [self.altered.index(row) for row in plan.penalized]
        self._penalties = penalties_of([params[row] for row in plan.penalized])
        self.tops = [(row, p.top_logprobs) for row, p in enumerate(params) if p.logprobs and p.top_logprobs]
        self.top_rows = indices([row for row, _ in self.tops], device)

    def alter(self, logits: Tensor, changed: Tensor | None, occurred: list[Occurrences]) -> Tensor:
        """Scores (len(altered), vocabulary) of the altered rows, with rules and penalties applied."""
        if changed is None or len(changed) < len(self.altered):
            scores = logits.index_select(0, self._altered_index)
            if changed is not None:
                scores.index_copy_(0, self._changed_places, changed)
        else:
            scores = changed
        if occurred:
            penalize(scores, self._penalized_places, occurred, self._penalties)
        return scores


class _Group:
    """Rows that draw from the same tensor of scores.

    Attributes:
        greedy, greedy_rows: rows that take the best token, as numbered in the batch and in the scores.
        draws: how the others draw; None if there are none.
        draw_rows, draw_index, mixed_seeds: their rows in the batch, as a list and a tensor, and their seeds, mixed.
    """

    def __init__(
        self,
        batch_rows: list[int],
        rows: list[int],
        params: list[SamplingParams],
        vocabulary: int,
        device: torch.device,
    ) -> None:
        greedy: list[tuple[int, int]] = []
        sampled: list[tuple[int, int]] = []
        for pair in zip(batch_rows, rows, strict=True):
            (sampled if samples(params[pair[0]]) else greedy).append(pair)
        self.greedy = indices([row for row, _ in greedy], device)
        self.greedy_rows = indices([row for _, row in greedy], device)
        self.draws = None
        if sampled:
            self.draw_rows = [row for row, _ in sampled]
            self.draw_index = indices(self.draw_rows, device)
            chosen = [params[row] for row in self.draw_rows]
            self.mixed_seeds = mix(np.array([p.seed for p in chosen], np.uint64))
            self.draws = Draws([row for _, row in sampled], chosen, vocabulary, device)


def _choose(scan: Scan, group: _Group, tokens: Tensor, positions: list[int]) -> None:
    """Choose a group's tokens, and put them into their places in `tokens`."""
    if len(group.greedy):
        tokens[group.greedy] = scan.best(group.greedy_rows)
    if group.draws is not None:
        keys = keys_of(group.mixed_seeds, [positions[row] for row in group.draw_rows])
        tokens[group.draw_index] = draw(scan, group.draws, keys)


def _logprobs(scan: Scan, tokens: Tensor) -> Tensor:
    """(R,) log-probabilities of one token in each row; NaN where there is none."""
    rows = torch.arange(len(tokens), device=tokens.device)
    scores = scan.scores.gather(1, tokens.clamp_min(0)[:, None])[:, 0].masked_fill_(tokens < 0, torch.nan)
    return scan.logprobs(scores[:, None], rows)[:, 0]


def _alternatives(scan: Scan, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Ids and log-probabilities of the `count` most likely tokens of some rows."""
    values, ids = scan.best_of(rows, min(count, scan.scores.shape[1]))
    return ids, scan.logprobs(values, rows)


def _listed(ids: Tensor, logprobs: Tensor) -> list[Top]:
    return [tuple(zip(*row, strict=True)) for row in zip(ids.tolist(), logprobs.tolist(), strict=True)]
