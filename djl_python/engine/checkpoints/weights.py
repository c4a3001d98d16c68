"""What a weight may be: a tensor, or one that stays in its checkpoint. Runs in the engine process."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

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
        """The codes for kernels; None if there are none that kernels can take."""
        ...


Weight = Tensor | CheckpointWeight


def dense(weight: Weight) -> Tensor:
    """The weight's numbers (n, k), dequantized where it has codes."""
    return weight if isinstance(weight, Tensor) else weight.dense()


def tensors_of(weight: Tensor | CheckpointBacked) -> list[Tensor]:
    """The tensors that a checkpoint holds of a weight."""
    return [weight] if isinstance(weight, Tensor) else weight.checkpoint_tensors
