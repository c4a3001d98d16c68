"""Finds equal numbers in the records of a random copy. Runs in the engine process, at load.

The numbers are random and well-conditioned (`watching.copies`), so numbers that are equal but for fp32's rounding are
computed alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor

# Relative to the norm of all numbers. One operation in fp32 in another order changes 1e-6; functions to be told apart
# (two kinds of GELU are the nearest) differ by 1e-4 and more.
_TOLERANCE: Final = 2e-5
_TOLERANCE_OF_FACTORS: Final = 1e-3


def same(a: Tensor, b: Tensor) -> bool:
    """Whether a equals b, whatever their shapes."""
    if a.numel() != b.numel():
        return False
    a, b = a.reshape(-1).float(), b.reshape(-1).float()
    return bool((a - b).norm() <= _TOLERANCE * b.norm())


def distance(a: Tensor, b: Tensor) -> float:
    """The norm of the difference."""
    return float((a.float() - b.float()).norm())


def factor_of(part: Tensor, whole: Tensor) -> float:
    """The number s for which s * part is nearest to whole."""
    part, whole = part.reshape(-1).double(), whole.reshape(-1).double()
    return float(part @ whole / (part @ part).clamp_min(1e-30))


def rounded_factor(factor: float, numbers: Iterable[float] = ()) -> float:
    """A fitted factor rounded to the number that the model's code has: 1 or one of `numbers`, if one is that near."""
    nearest = min((1.0, *numbers), key=lambda number: abs(number - factor))
    return nearest if abs(nearest - factor) <= _TOLERANCE_OF_FACTORS * abs(nearest) else factor


def fitted_factors(parts: list[Tensor], whole: Tensor) -> list[float]:
    """The parts' factors with which their sum is nearest to the whole (least squares)."""
    if not parts:
        return []
    columns = torch.stack([part.double().flatten() for part in parts], 1)
    solution: list[float] = torch.linalg.lstsq(columns, whole.double().flatten()).solution.tolist()
    return solution
