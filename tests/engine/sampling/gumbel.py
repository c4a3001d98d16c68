"""Draws with Gumbel noise, as gumbel.h and sample.h make them, in other words."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from djl_python.core.types import SamplingParams
from djl_python.engine.sampling.gumbel import mix


def noise_of(params: SamplingParams, position: int, count: int) -> npt.NDArray[np.float64]:
    """The noise of the first `count` tokens, in a draw at this position."""
    seed = mix(np.array([params.seed], np.uint64))
    first, second = mix(seed + np.uint64(position)).view(np.uint32)
    h = np.arange(count, dtype=np.uint32) + first
    h = (h ^ h >> np.uint32(16)) * np.uint32(0x7FEB352D)
    h = (h ^ h >> np.uint32(15) ^ second) * np.uint32(0x846CA68B)
    h ^= h >> np.uint32(16)
    noise: npt.NDArray[np.float64] = -np.log(-np.log1p(-((h >> np.uint32(1)) + 0.5) / 2**31))
    return noise


def permitted(scores: Tensor, params: SamplingParams) -> Tensor:
    """Ids of the tokens that top_k, then top_p of what it leaves, and min_p permit, best first."""
    order = scores.argsort(descending=True, stable=True)[: params.top_k or None]
    masses = ((scores - scores.max()).double() / params.temperature).exp()
    all_ = masses[order].sum() if params.top_k else masses.sum()
    masses = masses[order]
    kept = (masses.cumsum(0) - masses < params.top_p * all_) | (params.top_p >= 1)
    kept &= masses >= params.min_p * masses[0]
    kept[0] = True
    return order[kept]


def drawn(scores: Tensor, params: SamplingParams, position: int) -> int:
    """The token that is drawn from a row of scores (vocabulary,)."""
    ids = permitted(scores, params)
    noise = torch.from_numpy(noise_of(params, position, len(scores)))[ids]
    return int(ids[(scores[ids].double() / params.temperature + noise).argmax()])
