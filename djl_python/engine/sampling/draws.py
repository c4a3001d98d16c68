"""Draws tokens from scores with torch. Runs in the engine process.

A draw takes the token with the greatest sum of its score, divided by the temperature, and its noise (`gumbel`), among
the tokens that the bounds permit. Bounds that depend on weights alone need no sorting: no token after one that is not
permitted is permitted, so the draw is repeated among the tokens before it. Where top_k bounds a draw, its best tokens
are ranked, and no other token gets noise.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ...core.types import SamplingParams
from ..batch.sequence import NO_TOKEN
from ..devices.transfers import indices, upload
from .gumbel import Keys, noise_of
from .row_scan import Scan
from .sampling_plan import inverse_temperature

# Draws are ranked together with those of up to so many best tokens.
_WIDTHS: Final = (64, 1024, 8192)
# Next to scores multiplied by more, noise has no digits in fp32, unless they are measured from the greatest.
_COLD: Final = 100.0


class Draws:
    """Parameters of D random draws.

    Attributes:
        rows: (D,), the row of scores of each draw.
        inverse_temperature, top_k, top_p, min_p, typical_p: (D, 1).
        ranked: by how many of the best tokens are ranked: the places of these draws.
        weighed: places of the others, for which all tokens get noise.
        bounded: those of the weighed ones with a bound, as places among these.
        typical: (len(bounded), 1) whether that bound is typicality.
    """

    def __init__(self, rows: list[int], params: list[SamplingParams], vocabulary: int, device: torch.device) -> None:
        self.rows = indices(rows, device)
        numbers = [
            (inverse_temperature(p), min(p.top_k or vocabulary, vocabulary), p.top_p, p.min_p, p.typical_p)
            for p in params
        ]
        # (5, D, 1): for each parameter one number per draw, to be broadcast along the vocabulary
        columns = torch.tensor(numbers, dtype=torch.float32).view(-1, 5).T[:, :, None]
        self.inverse_temperature, self.top_k, self.top_p, self.min_p, self.typical_p = upload(columns, device)
        # The base of scores, as a factor of their row's greatest: 1 for that, 0 for none.
        bounded = [bool(p.top_k or p.typical_p < 1 or p.top_p < 1 or p.min_p > 0) for p in params]
        measured = [bound or inverse_temperature(p) > _COLD for bound, p in zip(bounded, params, strict=True)]
        self._measured = upload(torch.tensor(measured)[:, None], device)
        widths = sorted({*(min(width, vocabulary) for width in _WIDTHS), vocabulary})
        by_width: dict[int, list[int]] = {}
        weighed: list[int] = []
        for place, p in enumerate(params):
            if p.top_k or (p.typical_p < 1 and (p.top_p < 1 or p.min_p > 0)):
                least = min(p.top_k or vocabulary, vocabulary)
                by_width.setdefault(next(width for width in widths if width >= least), []).append(place)
            else:
                weighed.append(place)
        self.ranked = [(width, places, indices(places, device)) for width, places in by_width.items()]
        self.weighed, self.weighed_index = weighed, indices(weighed, device)
        self.bounded = indices([i for i, place in enumerate(weighed) if bounded[place]], device)
        self.typical = self.typical_p[self.weighed_index][self.bounded] < 1
        self.has_typical = any(params[place].typical_p < 1 for place in weighed)

    def at_temperature(self, scores: Tensor, scan: Scan, which: Tensor) -> Tensor:
        """Scores (len(which), K) of some draws' rows, to which noise can be added."""
        top = torch.where(self._measured[which], scan.greatest[self.rows[which], None], 0)
        return (scores - top).mul_(self.inverse_temperature[which])

    def weights(self, scores: Tensor, scan: Scan, which: Tensor) -> Tensor:
        """Weights of scores (len(which), K) of some draws' rows, not normalized: 1 for a row's greatest score."""
        top = scan.greatest[self.rows[which], None]
        return (scores - top).mul_(self.inverse_temperature[which]).exp_()


def draw(scan: Scan, draws: Draws, keys: Keys) -> Tensor:
    """Draw token ids (D,) from the rows `draws.rows` of the scan's scores; NO_TOKEN where scores are no numbers.

    Args:
        keys: (D,), of each draw's noise.
    """
    drawn = torch.empty(len(keys), dtype=torch.long, device=scan.scores.device)
    for width, places, which in draws.ranked:
        drawn[which] = _draw_ranked(scan, draws, which, width, keys[places])
    if draws.weighed:
        drawn[draws.weighed_index] = _draw_weighed(scan, draws, keys[draws.weighed])
    of_drawn = scan.scores[draws.rows, drawn]
    return drawn.masked_fill_(~(of_drawn > float("-inf")), NO_TOKEN)


def _draw_ranked(scan: Scan, draws: Draws, which: Tensor, width: int, keys: Keys) -> Tensor:
    values, ids = scan.best_of(draws.rows[which], width)
    kept = _permitted(draws.weights(values, scan, which), draws, which)
    sums = draws.at_temperature(values, scan, which).add_(noise_of(keys, ids))
    best = sums.masked_fill_(~kept, float("-inf")).argmax(-1, keepdim=True)
    return ids.gather(1, best)[:, 0]


def _permitted(weights: Tensor, draws: Draws, which: Tensor) -> Tensor:
    """Which of a draw's best tokens may be drawn.

    Args:
        weights: (len(which), K), descending along K.
    """
    kept = torch.arange(weights.shape[1], device=weights.device) < draws.top_k[which]
    # top_p is a share of the mass that top_k left; the token that crosses it is kept
    left = weights * kept
    kept &= (left.cumsum(-1) - left < draws.top_p[which] * left.sum(-1, keepdim=True)) | (draws.top_p[which] >= 1)
    kept &= weights >= draws.min_p[which] * weights[:, :1]
    kept[:, 0] = True
    typical_p = draws.typical_p[which]
    return torch.where(typical_p < 1, _typical(weights * kept, typical_p), kept)


def _typical(weights: Tensor, typical_p: Tensor) -> Tensor:
    """Locally typical sampling: keep the tokens whose information is nearest the entropy, up to a mass of typical_p."""
    order = _atypicality(weights).argsort(dim=-1, stable=True)
    ordered = weights.gather(1, order)
    kept = (ordered.cumsum(-1) - ordered < typical_p * weights.sum(-1, keepdim=True)) & (ordered > 0)
    kept[:, 0] = True
    return torch.zeros_like(kept).scatter_(1, order, kept)


def _atypicality(weights: Tensor) -> Tensor:
    """How far a token's information is from the entropy; infinite for a token without weight."""
    probabilities = weights / weights.sum(-1, keepdim=True)
    log = probabilities.log()
    entropy = -(probabilities * log).nansum(-1, keepdim=True)
    return (-log - entropy).abs()


def _draw_weighed(scan: Scan, draws: Draws, keys: Keys) -> Tensor:
    which = draws.weighed_index
    picked = scan.scores[draws.rows[which]]
    ids = torch.arange(picked.shape[1], device=picked.device)[None]
    sums = draws.at_temperature(picked, scan, which).add_(noise_of(keys, ids))
    tokens = sums.argmax(-1)
    open_ = draws.bounded
    if not len(open_):
        return tokens
    which, sums, scores = which[open_], sums[open_], picked[open_]
    weights = draws.weights(scores, scan, which)
    # Tokens are ordered by rank, lowest first.
    rank = -scores
    if draws.has_typical:
        rank = torch.where(draws.typical, _atypicality(weights), rank)
    share = torch.where(draws.typical, draws.typical_p[which], draws.top_p[which])[:, 0]
    most = torch.where(share < 1, share * weights.sum(-1), torch.inf)
    least = draws.min_p[which]
    while len(open_):
        drawn = tokens[open_, None]
        at = rank.gather(1, drawn)
        before = (rank < at) | ((rank == at) & (ids < drawn))
        ahead = (weights * before).sum(-1)
        stays = ((ahead < most) & (weights.gather(1, drawn) >= least)[:, 0]) | ~(ahead > 0)
        sums.masked_fill_(~before, float("-inf"))
        left = (~stays).nonzero()[:, 0]  # the host waits for the device here; an index of booleans would, each time
        open_, sums, rank, weights, most, least = (each[left] for each in (open_, sums, rank, weights, most, least))
        tokens[open_] = sums.argmax(-1)
    return tokens
