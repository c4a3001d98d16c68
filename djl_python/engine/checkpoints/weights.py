"""The forms of a weight: a tensor, or one that stays in its checkpoint; and the check that a model has all weights.

Runs in the engine process.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ...core.errors import ModelLoadError
from .blocks import BlockRows
from .quantization import Codes


class CheckpointBacked(Protocol):
    """A weight, or weights, whose tensors a checkpoint holds."""

    @property
    def checkpoint_tensors(self) -> list[Tensor]:
        """The tensors that the checkpoint holds."""
        ...


class CheckpointWeight(CheckpointBacked, Protocol):
    """A weight (n, k) that stays in its checkpoint: codes, or numbers that are not in memory yet."""

    def __len__(self) -> int: ...

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def dense(self) -> Tensor:
        """(n, k)"""
        ...

    def codes(self) -> Codes | None:
        """The codes for kernels; None: the weight has none, or kernels do not support its form."""
        ...

    def blocks(self) -> BlockRows | None:
        """The rows in blocks, for kernels; None if they are stored otherwise, or differ in type."""
        ...


Weight = Tensor | CheckpointWeight


def dense(weight: Weight) -> Tensor:
    """The weight's numbers (n, k), dequantized where it has codes."""
    return weight if isinstance(weight, Tensor) else weight.dense()


def tensors_of(weight: Tensor | CheckpointBacked) -> list[Tensor]:
    """The tensors that a checkpoint holds of a weight."""
    return [weight] if isinstance(weight, Tensor) else weight.checkpoint_tensors


def check_weights(
    path: Path, model: Any, report: Mapping[str, Any], method: str | None = None, *, unused: str | None = None
) -> None:
    """Check transformers' report about the weights.

    Args:
        path: the checkpoint's directory.
        method: the checkpoint's quantization method.
        unused: prefix of the names of weights that may be missing.

    Raises:
        ModelLoadError: the checkpoint lacks some, or has some in other shapes.
    """
    if others := sorted(report["mismatched_keys"]):
        name, stored, needed = others[0]
        raise ModelLoadError(
            f"{path}: {len(others)} of the weights that {type(model).__name__} needs have other shapes: "
            f"{name} has {tuple(stored)}, expected {tuple(needed)} (config.json)"
        )
    missing = set(report["missing_keys"])
    if method is None:  # the model's code may make buffers itself
        missing &= {name for name, _ in model.named_parameters()}
    if unused is not None:
        missing = {name for name in missing if not name.startswith(unused)}
    if missing:
        kind = "" if method is None else f"{method} "
        some = ", ".join(sorted(missing)[:3])
        raise ModelLoadError(
            f"{path}: {kind}without {len(missing)} of the weights that {type(model).__name__} needs: {some}"
        )
