"""Seeds for further draws of one request. Runs in the worker."""

from __future__ import annotations

from typing import Final

from djl_python.core.types import DRAWN_SEED_BITS, MAX_SEED

_SEED_SHIFT: Final = 64 - DRAWN_SEED_BITS


def sibling_seed(seed: int, index: int) -> int:
    """The seed of the `index`-th sequence of a request: reproducible, and unlike its neighbours' (SplitMix64)."""
    if index == 0:
        return seed
    z = (seed + index * 0x9E3779B97F4A7C15) & MAX_SEED
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MAX_SEED
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MAX_SEED
    return (z ^ (z >> 31)) >> _SEED_SHIFT
