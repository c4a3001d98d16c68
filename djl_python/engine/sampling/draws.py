"""Draws tokens from scores with torch, using the statistics of `row_scan`. Runs in the engine process.

Where the bounds depend only on the total weight before a token, a draw needs no sorting (`row_scan.draw_weighed`).
Where they depend on ranks, only as many of the best tokens are ranked as make the draw certain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch import Tensor

from ...core.types import SamplingParams
from ..devices.transfers import indices, upload
from .row_scan import Bounds, Scan, States, best_of, draw_weighed, invert, others, uniforms, weights_of

# How many of a row's best tokens are ranked, in successive attempts, before its whole vocabulary is sorted.
CANDIDATES: Final = (64, 1024, 8192)


class Draws:
    """Parameters of D random draws.

    Attributes:
        rows: (D,), the row of scores of each draw.
        seeds: (D,).
        temperature, top_k, top_p, min_p, typical_p: (D, 1).
        ranked, typical, weighed: indices of the draws bounded by rank, by typicality, and by weight or not at all.
        bounds: those of the weighed draws.
        ranked_typical: whether typicality bounds any of the ranked draws, too.
    """

    def __init__(self, rows: list[int], params: list[SamplingParams], vocabulary: int, device: torch.device) -> None:
        self.rows = indices(rows, device)
        self.seeds = np.array([p.seed for p in params], np.uint64)
        numbers = [
            (p.temperature, min(p.top_k or vocabulary, vocabulary), p.top_p, p.min_p, p.typical_p) for p in params
        ]
        # (5, D, 1): for each parameter one number per draw, to be broadcast along the vocabulary
        columns = torch.tensor(numbers, dtype=torch.float32).view(-1, 5).T[:, :, None]
        self.temperature, self.top_k, self.top_p, self.min_p, self.typical_p = upload(columns, device)
        ranked = [bool(p.top_k) or (p.typical_p < 1 and (p.top_p < 1 or p.min_p > 0)) for p in params]
        self.ranked = indices([i for i, needed in enumerate(ranked) if needed], device)
        self.typical = indices([i for i, p in enumerate(params) if p.typical_p < 1 and not ranked[i]], device)
        self.weighed_places = [i for i, p in enumerate(params) if p.typical_p >= 1 and not ranked[i]]
        self.weighed = indices(self.weighed_places, device)
        _, _, top_p, min_p, _ = columns[:, self.weighed_places, 0]
        bounded = upload(((top_p < 1) | (min_p > 0)).nonzero()[:, 0], device)
        self.bounds = Bounds(self.top_p[self.weighed, 0], self.min_p[self.weighed, 0], bounded)
        self.ranked_typical = any(needed and p.typical_p < 1 for needed, p in zip(ranked, params, strict=True))


def draw(scores: Tensor, scan: Scan, draws: Draws, states: States) -> Tensor:
    """Draw token ids (len(draws.rows),) from the rows `draws.rows` of `scores` (R, vocabulary).

    Args:
        states: (len(draws.rows),), the state of each draw's random numbers.
    """
    vocabulary = scores.shape[1]
    drawn = torch.empty(len(states), dtype=torch.long, device=scores.device)
    chances = uniforms(states, scores.device)

    def among_likeliest(which: Tensor, width: int) -> tuple[Tensor, Tensor]:
        values, ids = best_of(scores, scan, draws.rows[which], width)
        probabilities = _probabilities(values, scan, draws, which)
        kept, certain = _filter(probabilities, draws, which, vocabulary)
        return ids.gather(1, invert(probabilities * kept, chances[which])[:, None])[:, 0], certain

    def among_typical(which: Tensor, width: int) -> tuple[Tensor, Tensor]:
        whole = _probabilities(scores[draws.rows[which]], scan, draws, which)
        ids = (-_atypicality(whole)).topk(width, dim=-1).indices
        probabilities = whole.gather(1, ids)
        kept = _leading(probabilities, draws.typical_p[which])
        choice = ids.gather(1, invert(probabilities * kept, chances[which])[:, None])[:, 0]
        return choice, ~kept[:, -1] | (width == vocabulary)

    if len(draws.weighed):
        which = draws.weighed
        drawn[which] = draw_weighed(scores, scan, draws.rows[which], draws.bounds, states[draws.weighed_places])
    _widen(draws.ranked, vocabulary, drawn, among_likeliest)
    _widen(draws.typical, vocabulary, drawn, among_typical)
    return drawn


def _probabilities(values: Tensor, scan: Scan, draws: Draws, which: Tensor) -> Tensor:
    """Probabilities of scores (len(which), K) of these draws' rows, among all tokens of the rows."""
    assert scan.masses is not None
    rows = draws.rows[which]
    return weights_of(values, scan, rows) / scan.masses[rows].sum(-1, keepdim=True)


def _widen(
    which: Tensor, vocabulary: int, drawn: Tensor, attempt: Callable[[Tensor, int], tuple[Tensor, Tensor]]
) -> None:
    """Attempt these draws with more and more candidates, until each result is certain."""
    for width in sorted({min(candidates, vocabulary) for candidates in (*CANDIDATES, vocabulary)}):
        if not len(which):
            break
        choice, certain = attempt(which, width)
        drawn[which] = choice  # what is not certain is drawn again
        which = which[others(certain)]


def _filter(probabilities: Tensor, draws: Draws, which: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Which candidates are kept, and for which rows that is certain without seeing the rest of the vocabulary.

    Args:
        probabilities: (R, K), descending along K; they sum to less than 1 where candidates were cut off.
    """
    width = probabilities.shape[1]
    top_k, top_p, typical_p = draws.top_k[which], draws.top_p[which], draws.typical_p[which]
    kept = torch.arange(width, device=probabilities.device) < top_k
    # top_p is a share of the mass that top_k left; the token that crosses it is kept
    left = probabilities * kept
    mass = torch.where(top_k < vocabulary, left.sum(-1, keepdim=True), 1.0)
    kept &= (left.cumsum(-1) - left < top_p * mass) | (top_p >= 1)
    kept &= probabilities >= draws.min_p[which] * probabilities[:, :1]
    kept[:, 0] = True
    certain = (top_k <= width) | ((top_k >= vocabulary) & ~kept[:, -1:])
    if draws.ranked_typical:
        kept = torch.where(typical_p < 1, _typical(probabilities * kept, typical_p), kept)
    return kept, certain[:, 0]


def _typical(probabilities: Tensor, typical_p: Tensor) -> Tensor:
    """Locally typical sampling: keep the tokens whose information is nearest the entropy, up to a mass of typical_p."""
    normal = probabilities / probabilities.sum(-1, keepdim=True)
    order = _atypicality(normal).argsort(dim=-1, stable=True)
    return torch.zeros_like(normal, dtype=torch.bool).scatter(1, order, _leading(normal.gather(1, order), typical_p))


def _atypicality(probabilities: Tensor) -> Tensor:
    """How far a token's information is from the entropy; infinite for a token of probability 0."""
    log = probabilities.log()
    entropy = -(probabilities * log).nansum(-1, keepdim=True)
    return (-log - entropy).abs()


def _leading(ordered: Tensor, mass: Tensor) -> Tensor:
    """Mask of each row's leading probabilities that make up this mass, including the one that crosses it."""
    kept = (ordered.cumsum(-1) - ordered < mass) & (ordered > 0)
    kept[:, 0] = True
    return kept
