"""Seeds: checks clients' seeds, converts them for the engine, and draws new ones. Runs in the worker."""

from __future__ import annotations

import random
from typing import Final

import msgspec

from ....core.types import DRAWN_SEED_BITS, MAX_SEED, SamplingParams

_MIN_SEED: Final = -(2**63)


def is_seed(value: int) -> bool:
    """Whether it is a 64-bit integer, signed or not."""
    return _MIN_SEED <= value <= MAX_SEED


def engine_seed(given: int | None) -> int:
    """A client's seed as an unsigned 64-bit integer, 0 .. 2**64-1; a new one if it sent none."""
    return drawn_seed() if given is None else given & MAX_SEED


def with_seed(sampling: SamplingParams, given: int | None) -> SamplingParams:
    """Another prompt's sampling parameters: the same, with a seed of its own unless the client sent one."""
    if given is not None or not sampling.do_sample:
        return sampling
    return msgspec.structs.replace(sampling, seed=engine_seed(None))


def drawn_seed() -> int:
    """Draw a new seed of `DRAWN_SEED_BITS` bits."""
    return random.getrandbits(DRAWN_SEED_BITS)
