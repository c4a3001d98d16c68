"""Parts of layers other than linears: norms, stacks, rotary embeddings. Runs in the engine process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ...checkpoints.dequantizing_linear import concat_rows
from ...checkpoints.expert_stacks import ExpertStack
from ...checkpoints.linears import Linear, RowOrigins

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
    """Linears of the same input as one linear, whose outputs are in `order`, if given. Only `joined` copies them.

    `factors`, in that order, multiply the outputs.
    """

    parts: list[Linear]
    order: Tensor | None
    factors: Tensor | None = None

    @property
    def columns(self) -> int:
        """Width of the result."""
        return sum(len(part.weight) for part in self.parts) if self.order is None else len(self.order)

    def joined(self) -> Linear:
        weight = concat_rows([part.weight for part in self.parts])
        bias = None
        if any(part.bias is not None for part in self.parts):
            biases = [
                torch.zeros(len(part.weight), dtype=part.weight.dtype) if part.bias is None else part.bias
                for part in self.parts
            ]
            bias = torch.cat(biases)
        origins = RowOrigins.joined(self.parts)
        if self.order is None:
            return Linear(weight, bias, origins)
        joined = Linear(weight[self.order], None if bias is None else bias[self.order], origins.take(self.order))
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
