"""Decides when recorded numbers count as equal. Runs in the engine process, once."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

# Relative; bf16 rounds to 1/256. Computations to be told apart differ by far more.
_TOLERANCE: Final = 2e-2


def same(a: Tensor, b: Tensor) -> bool:
    """Whether a equals b up to rounding in the model's dtype, whatever their shapes."""
    if a.numel() != b.numel():
        return False
    a, b = a.reshape(-1).float(), b.reshape(-1).float()
    return bool((a - b).norm() <= _TOLERANCE * b.norm() + 1e-6)


def rounds_to(a: Tensor, b: Tensor) -> bool:
    """Whether a equals b up to rounding in b's dtype; strict enough to tell similar functions apart."""
    a_, b_ = a.float(), b.float()
    return bool((a_ - b_).norm() <= (1e-4 if b.dtype == torch.float32 else 1e-2) * b_.norm())


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.float() - b.float()).norm())


def factor_of(part: Tensor, whole: Tensor) -> float:
    """The number s for which s * part is nearest to whole."""
    part, whole = part.reshape(-1).double(), whole.reshape(-1).double()
    return float(part @ whole / (part @ part).clamp_min(1e-30))


def rounded(factor: float) -> float:
    return 1.0 if abs(factor - 1) < 1e-2 else factor
