"""What recipes consist of: norms, linears, rotations. Runs in the engine process; no computation here."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..coded_linear import Weight, below_each_other, dense
from ..expert_stacks import ExpertStack


class NotUnderstoodError(Exception):
    """The model does something that has no operation here."""


@dataclass
class Norm:
    """kind "rms" or "layer"; weight and bias as they multiply and add (fp32)."""

    kind: str
    weight: Tensor
    bias: Tensor | None
    eps: float


@dataclass
class Linear:
    """out = in @ weight.T + bias; weight (out, in)."""

    weight: Weight
    bias: Tensor | None

    @property
    def numbers(self) -> Tensor:
        """The weight's; of codes, unpacked."""
        return dense(self.weight)

    def times(self, factors: Tensor | float) -> Linear:
        """What it makes times factors, (out,) or one for all; codes become numbers."""
        numbers = self.numbers
        columns = torch.as_tensor(factors, dtype=torch.float32).view(-1, 1)
        bias = None if self.bias is None else (self.bias.float() * columns[:, 0]).to(self.bias.dtype)
        return Linear((numbers.float() * columns).to(numbers.dtype), bias)


@dataclass
class OfExperts:
    """A linear of each expert: weight (experts, out, in), bias (experts, out)."""

    weight: Tensor | ExpertStack
    bias: Tensor | None

    @property
    def columns(self) -> int:
        """Of what one makes."""
        return int(self.weight.shape[1])


@dataclass
class Stacked:
    """Linears of the same input as one, its outputs in another order if there is one; copied when it is asked for.

    `factors`, in that order, multiply what it makes.
    """

    parts: list[Linear]
    order: Tensor | None
    factors: Tensor | None = None

    def joined(self) -> Linear:
        weight = below_each_other([part.weight for part in self.parts])
        bias = None
        if any(part.bias is not None for part in self.parts):
            biases = [
                torch.zeros(len(part.weight), dtype=part.weight.dtype) if part.bias is None else part.bias
                for part in self.parts
            ]
            bias = torch.cat(biases)
        if self.order is None:
            return Linear(weight, bias)
        joined = Linear(weight[self.order], None if bias is None else bias[self.order])
        return joined if self.factors is None else joined.times(self.factors)


@dataclass
class Rotary:
    """cos and sin of half the rotated dimensions, (positions, rotated / 2) fp32.

    Args:
        near: sequences with more tokens have rows of their own for their positions, after so many first; 0: none has.
    """

    cosines: Tensor
    sines: Tensor
    interleaved: bool
    near: int = 0
