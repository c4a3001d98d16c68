"""The passes over whole rows of scores that drawing tokens takes, with torch. Runs in the engine process.

A vocabulary can have 150,000 tokens: statistics of all of them are computed once, block by block, and later passes look
only into the blocks that matter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..devices.transfers import upload

States = npt.NDArray[np.uint64]

#: Tokens of a block; the last block of a row may be shorter.
BLOCK: Final = 64


@dataclass(frozen=True)
class Scan:
    """Statistics of rows of scores. All fp32; blocks are ceil(vocabulary / BLOCK).

    Attributes:
        maxima: (R, blocks), each block's greatest score.
        inverse_temperature: (R,), as given.
        log_mass: (R,), the logarithm of the sum of exp(score - the row's greatest).
        masses: (R, blocks), what each block adds to a row's sum of exp((score - the row's greatest) / temperature);
            None if no temperatures were given.
    """

    maxima: Tensor
    log_mass: Tensor
    masses: Tensor | None
    inverse_temperature: Tensor | None

    @functools.cached_property
    def greatest(self) -> Tensor:
        """(R,), each row's greatest score."""
        return self.maxima.amax(-1)

    def logprobs(self, scores: Tensor, rows: Tensor) -> Tensor:
        """Log-probabilities of scores (len(rows), K) of some rows. Subtracts the greatest first, to be exact near 0."""
        return scores - self.greatest[rows, None] - self.log_mass[rows, None]


@dataclass(frozen=True)
class Bounds:
    """Which tokens may be drawn, for each of D draws.

    Attributes:
        top_p: (D,), the tokens before a token weigh less than this share of all; 1 for no bound.
        min_p: (D,), a token weighs at least this share of the heaviest; 0 for no bound.
        bounded: indices of the draws that have a bound.
    """

    top_p: Tensor
    min_p: Tensor
    bounded: Tensor


def scan_rows(scores: Tensor, inverse_temperature: Tensor | None) -> Scan:
    """Compute the statistics of every row.

    Args:
        inverse_temperature: (R,), one over each row's temperature.
    """
    maxima = _by_block(scores, lambda blocks: blocks.amax(-1))
    below = scores - maxima.amax(-1, keepdim=True)
    log_mass = below.logsumexp(-1)
    if inverse_temperature is None:
        return Scan(maxima, log_mass, None, None)
    masses = (below * inverse_temperature[:, None]).exp_()
    return Scan(maxima, log_mass, _by_block(masses, lambda blocks: blocks.sum(-1)), inverse_temperature)


def best_of(scores: Tensor, scan: Scan, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Scores and ids (len(rows), width) of some rows' greatest scores, best first; `width` is at most `vocabulary`."""
    vocabulary = scores.shape[1]
    whole = vocabulary // BLOCK
    if width * 4 > whole:  # most blocks would be read
        return scores[rows].topk(width, dim=-1)
    blocks = scan.maxima[rows, :whole].topk(width, dim=-1).indices
    ids = (blocks[:, :, None] * BLOCK + torch.arange(BLOCK, device=scores.device)).view(len(rows), -1)
    rest = torch.arange(whole * BLOCK, vocabulary, device=scores.device).expand(len(rows), -1)
    ids = torch.cat([ids, rest], dim=1)
    values, places = scores[rows[:, None], ids].topk(width, dim=-1)
    return values, ids.gather(1, places)


def draw_weighed(scores: Tensor, scan: Scan, rows: Tensor, bounds: Bounds, states: States) -> Tensor:
    """Draw ids (len(rows),) from some rows, at their temperatures and within bounds.

    Args:
        scan: with masses.
        states: of the random numbers, one for each draw, which its redraws continue.
    """
    # By rejection: no token after one out of bounds is within them, so a rejected draw is repeated among the tokens
    # before it. The result is distributed as if drawn from the permitted tokens alone, and nothing is sorted.
    tokens = _draw_from_blocks(scores, scan, rows, uniforms(states, scores.device))
    open_ = bounds.bounded
    picked, ids = scores[rows[open_]], torch.arange(scores.shape[1], device=scores.device)
    weights = weights_of(picked, scan, rows[open_])
    total = weights.sum(-1)
    while len(open_):
        drawn = tokens[open_, None]
        score = picked.gather(1, drawn)
        before = (picked > score) | ((picked == score) & (ids < drawn))
        enough = weights.gather(1, drawn)[:, 0] >= bounds.min_p[open_]
        weights *= before
        ahead = weights.sum(-1)
        stays = (((ahead < bounds.top_p[open_] * total) | (bounds.top_p[open_] >= 1)) & enough) | ~(ahead > 0)
        left = others(stays)
        open_, picked, weights, total = (each[left] for each in (open_, picked, weights, total))
        states = mix(states)
        tokens[open_] = invert(weights, uniforms(states, scores.device)[open_])
    return tokens


def others(settled: Tensor) -> Tensor:
    """Indices of what is not settled yet. The host waits for the device here; an index of booleans would, each time."""
    return (~settled).nonzero()[:, 0]


def weights_of(scores: Tensor, scan: Scan, rows: Tensor) -> Tensor:
    """Weights of scores (len(rows), K) of some rows, not normalized: 1 for a row's greatest score."""
    assert scan.inverse_temperature is not None
    return ((scores - scan.greatest[rows, None]) * scan.inverse_temperature[rows, None]).exp_()


def _draw_from_blocks(scores: Tensor, scan: Scan, rows: Tensor, chances: Tensor) -> Tensor:
    """Draw ids (len(rows),) from all tokens: first the block, then the token in it."""
    assert scan.masses is not None
    vocabulary, masses = scores.shape[1], scan.masses[rows]
    block = invert(masses, chances)[:, None]
    sums, mass = masses.cumsum(-1), masses.gather(1, block)
    inside = (chances[:, None] * sums[:, -1:] - (sums.gather(1, block) - mass)) / mass
    ids = block * BLOCK + torch.arange(BLOCK, device=scores.device)
    weights = weights_of(scores[rows[:, None], ids.clamp(max=vocabulary - 1)], scan, rows) * (ids < vocabulary)
    drawn = block[:, 0] * BLOCK + invert(weights, inside[:, 0].clamp(0, 1))
    return drawn.clamp(max=vocabulary - 1)  # in case scores are NaN


def invert(weights: Tensor, uniforms: Tensor) -> Tensor:
    """(R,) the index where the running sum of weights (R, K) passes uniform * total. Never one of weight 0."""
    sums = weights.cumsum(-1)
    total = sums[:, -1:]
    # strictly below the total, so that the last index found has a weight
    target = torch.minimum(uniforms[:, None] * total, total * (1 - 2**-23))
    return torch.searchsorted(sums, target, right=True)[:, 0].clamp(max=weights.shape[1] - 1)


def uniforms(states: States, device: torch.device) -> Tensor:
    """A uniform number in [0, 1] from each state; 1 only by rounding to fp32."""
    return upload(((states >> np.uint64(11)).astype(np.float64) * 2.0**-53).astype(np.float32), device)


def mix(states: States) -> States:
    """SplitMix64's step and finalizer: 64 well-mixed bits of each 64-bit state."""
    z = states + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _by_block(rows: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """Reduce each block of rows (R, n) to (R, blocks)."""
    whole = rows.shape[1] // BLOCK * BLOCK
    reduced = reduce(rows[:, :whole].view(len(rows), -1, BLOCK)) if whole else rows[:, :0]
    if whole == rows.shape[1]:
        return reduced
    return torch.cat([reduced, reduce(rows[:, None, whole:])], dim=1)
