"""Weights of a layer's experts, left where the checkpoint has them. Runs in the engine process.

transformers keeps the weights of all experts in one tensor, and indexes it by expert. In its place a module has an
`ExpertStack`: of codes, or of numbers in mapped files, which need no copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..transformers_private import NotInitialized
from .blocks import BlockRows
from .quantization import Codes, concatenable
from .weights import CheckpointWeight


class ExpertWeight(CheckpointWeight, Protocol):
    """The weight of one expert."""

    def __getitem__(self, rows: slice) -> ExpertWeight: ...


@dataclass(frozen=True)
class ExpertStack(NotInitialized):
    """Weights (experts, n, k), read as `dtype`."""

    experts: tuple[ExpertWeight, ...]
    dtype: torch.dtype

    def __len__(self) -> int:
        return len(self.experts)

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self), *self.experts[0].shape

    @property
    def checkpoint_tensors(self) -> list[Tensor]:
        """The tensors that the checkpoint holds."""
        return [tensor for expert in self.experts for tensor in expert.checkpoint_tensors]

    def __getitem__(self, expert: int | Tensor) -> Tensor:
        """(n, k) of one expert."""
        return self.experts[int(expert)].dense().to(self.dtype)

    def to(self, dtype: torch.dtype) -> ExpertStack:
        return replace(self, dtype=dtype)

    def rows(self, rows: slice) -> ExpertStack:
        """Some rows of each expert."""
        return replace(self, experts=tuple(expert[rows] for expert in self.experts))

    def dense(self) -> Tensor:
        """(experts, n, k)"""
        return torch.stack([self[expert] for expert in range(len(self))])


@dataclass(frozen=True)
class ConcatenatedExperts:
    """The rows of all experts, with `missing` rows of zeros after each expert's: a `CheckpointWeight`."""

    stack: ExpertStack
    missing: int

    def __len__(self) -> int:
        return len(self.stack) * (self.stack.shape[1] + self.missing)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.stack.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        return self.stack.dtype

    @property
    def checkpoint_tensors(self) -> list[Tensor]:
        return self.stack.checkpoint_tensors

    def dense(self) -> Tensor:
        return self._padded(self.stack[expert] for expert in range(len(self.stack)))

    def codes(self) -> Codes | None:
        parts = concatenable([expert.codes() for expert in self.stack.experts])
        if not parts:
            return None
        codes, scales, zeros = (
            self._padded(getattr(part, name) for part in parts) for name in ("codes", "scales", "zeros")
        )
        return Codes(parts[0].bits, codes, scales, zeros, parts[0].order)

    def blocks(self) -> BlockRows | None:
        parts = [expert.blocks() for expert in self.stack.experts]
        return BlockRows.joined([None if part is None else part.padded(self.missing) for part in parts])

    def _padded(self, parts: Iterable[Tensor]) -> Tensor:
        return torch.cat([nn.functional.pad(part, (0, 0, 0, self.missing)) for part in parts])


def stacks_of(module: nn.Module) -> dict[str, ExpertStack]:
    """A module's expert stacks, by attribute name."""
    return {name: value for name, value in vars(module).items() if isinstance(value, ExpertStack)}


def modules_with_stacks(model: nn.Module) -> list[tuple[nn.Module, dict[str, ExpertStack]]]:
    """The modules that have expert stacks, each with its stacks by name."""
    return [(module, stacks) for module in model.modules() if (stacks := stacks_of(module))]


@torch.inference_mode()
def unpack_experts_(model: Any, device: torch.device) -> None:
    """Replace every stack by a dense parameter, so that transformers multiplies by all experts at once."""
    holders = modules_with_stacks(model)
    for module, stacks in holders:
        for name, stack in stacks.items():
            delattr(module, name)
            module.register_parameter(name, nn.Parameter(stack.dense().to(device), requires_grad=False))
    if holders:
        model.set_experts_implementation(None)
