"""What layers of a recipe consist of: norms, linears, rotary embeddings. Runs in the engine process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ...checkpoints.dequantizing_linear import concat_rows
from ...checkpoints.expert_stacks import ExpertStack
from ...checkpoints.weights import Weight, dense

#: Names of activations in recipes; None: there is none.
ACTIVATIONS: Final = frozenset(
    {"silu", "gelu_tanh", "gelu", "relu", "relu_squared", "clamped_swiglu", "quick_gelu", "xielu"}
)


class NotUnderstoodError(Exception):
    """The model does something that has no native operation; the message says what."""


@dataclass
class Norm:
    """RMSNorm or LayerNorm (kind "rms" or "layer"); weight and bias are fp32, exactly what multiplies and is added."""

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
        """The weight as a tensor of numbers; codes are dequantized."""
        return dense(self.weight)

    def times(self, factors: Tensor | float) -> Linear:
        """A linear, in fp32, whose result is multiplied by factors, (out,) or one for all; codes are dequantized."""
        columns = torch.as_tensor(factors, dtype=torch.float32).view(-1, 1)
        bias = None if self.bias is None else self.bias.float() * columns[:, 0]
        return Linear(self.numbers.float() * columns, bias)


@dataclass
class ExpertLinears:
    """A linear of each expert: weight (experts, out, in), bias (experts, out)."""

    weight: Tensor | ExpertStack
    bias: Tensor | None

    @property
    def columns(self) -> int:
        """Width of one expert's result."""
        return int(self.weight.shape[1])


@dataclass
class Stacked:
    """Linears of the same input as one, its outputs in another `order` if there is one; copied by `joined` only.

    `factors`, in that order, multiply the outputs.
    """

    parts: list[Linear]
    order: Tensor | None
    factors: Tensor | None = None

    def joined(self) -> Linear:
        weight = concat_rows([part.weight for part in self.parts])
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
    """A rotary embedding: cos and sin of half the rotated dimensions, (positions, rotated / 2) fp32.

    Args:
        short_rows: LongRoPE's: the first `short_rows` rows are for sequences of up to as many tokens, the rest for
            longer ones; 0: all rows are for all sequences.
    """

    cosines: Tensor
    sines: Tensor
    interleaved: bool
    short_rows: int = 0
