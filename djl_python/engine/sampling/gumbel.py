"""Gumbel noise, the random numbers of draws: the same, to rounding, on every device. Runs in the engine process.

The token whose score plus noise is the greatest is one drawn with the probabilities softmax(scores). A token's noise is
a hash of its id and of its row's key, which is made of the sequence's seed and how many tokens it has generated. So a
draw among some tokens gives the same token as a draw among more, if that token is one of them; and a request that is
computed again draws the same tokens again, on any device. The native kernels have these functions too.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ..devices.transfers import upload

Keys = npt.NDArray[np.uint64]

# The multipliers of an integer hash of two rounds (C. Wellons, "lowbias32"), as signed numbers.
_FIRST: Final = 0x7FEB352D
_SECOND: Final = 0x846CA68B - (1 << 32)
_LEAST_NOISE: Final = 88.0  # minus the exponential of a token whose uniform number was rounded to 1


def mix(states: Keys) -> Keys:
    """SplitMix64's step and finalizer: 64 well-mixed bits of each 64-bit state."""
    z = states + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def keys_of(mixed_seeds: Keys, positions: list[int]) -> Keys:
    """(R,) the keys of draws at these positions.

    Args:
        mixed_seeds: (R,) `mix` of each row's seed.
    """
    return mix(mixed_seeds + np.array(positions, np.uint64))


def noise_of(keys: Keys, tokens: Tensor) -> Tensor:
    """Noise of some tokens of each row, fp32.

    Args:
        keys: (R,)
        tokens: (R, K) ids, or (1, K) of every row's.
    """
    first, second = upload(keys.view(np.int32).reshape(-1, 2), tokens.device).T[:, :, None]
    h = tokens.int() + first
    h = (h ^ _shifted(h, 16)) * _FIRST
    h = (h ^ _shifted(h, 15) ^ second) * _SECOND
    h ^= _shifted(h, 16)
    uniform = _shifted(h, 1).float().add_(0.5).mul_(2.0**-31)
    # Minus the logarithm of an exponentially distributed number. Winners have small ones, where log1p keeps its digits.
    return uniform.neg_().log1p_().neg_().clamp_(max=_LEAST_NOISE).log_().neg_()


def _shifted(h: Tensor, bits: int) -> Tensor:
    """32-bit numbers, shifted to the right without their signs."""
    return (h >> bits) & ((1 << (32 - bits)) - 1)
