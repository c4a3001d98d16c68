"""Mixers of a sequence's tokens: attention, and layers that keep a recurrent state. Runs in the engine process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor

from ...attention.parameters import LayerShape
from ...checkpoints.linears import Linear
from .primitives import Norm, Rotary, Stacked

#: The epsilon of the L2 norm of queries and keys in transformers' functions for gated delta rules.
DELTA_RULE_EPS: Final = 1e-6


@dataclass
class Attention:
    """One layer's attention; `projection` gives queries, keys and values, head by head, in this order.

    If `gated`, the projection also gives a gate as wide as the result, whose sigmoid multiplies the result. The norms
    are of each head or, with `norms_across`, of all heads together. `reads` is the index, among the attentions, of the
    one whose keys and values this one reads; the projection then gives queries only. A token sees `window` tokens up to
    itself (0: all), and `ahead` tokens after itself (None: all), which only encoders do.
    """

    heads: int
    kv_heads: int
    dim: int
    value_dim: int
    scale: float
    softcap: float
    window: int
    sinks: Tensor | None
    slopes: Tensor | None  # (heads,): added to a key's score for each position (ALiBi)
    projection: Stacked
    query_norm: Norm | None
    key_norm: Norm | None
    value_norm: Norm | None
    norms_across: bool
    rotary: Rotary | None
    gated: bool
    reads: int | None
    output: Linear
    ahead: int | None = 0

    @property
    def shape(self) -> LayerShape:
        return LayerShape(self.heads, self.kv_heads, self.dim, self.value_dim)


@dataclass
class LatentAttention:
    """One layer's latent attention: keys and values come from one latent per token (https://arxiv.org/abs/2405.04434).

    They are never computed. The weights of a head's keys, transposed, multiply its query, and those of its values the
    weighted sum of latents. So all heads read one key (the rotated dimensions, then the latent) and one value.

    Args:
        rotated: number of a key's rotated dimensions, which don't come from the latent.
        projection: gives the latent, before `norm`, and the rotated dimensions.
        query_latent, query_norm: make a latent that queries come from, if they don't come from the layer's input.
        queries: gives, head by head, what is multiplied with the latent; then, head by head, the rotated dimensions.
        expansion: of the latent, no bias; its rows `key_rows` (heads, dimensions) make keys, `value_rows` values.
    """

    heads: int
    rotated: int
    scale: float
    softcap: float
    window: int
    sinks: Tensor | None
    slopes: Tensor | None
    projection: Stacked
    norm: Norm
    query_latent: Stacked | None
    query_norm: Norm | None
    queries: Stacked
    expansion: Linear
    key_rows: Tensor
    value_rows: Tensor
    rotary: Rotary | None
    output: Linear

    kv_heads: ClassVar[int] = 1
    reads: ClassVar[None] = None

    @property
    def rank(self) -> int:
        """Width of the latent."""
        return len(self.norm.weight)

    @property
    def shape(self) -> LayerShape:
        return LayerShape(self.heads, 1, self.rotated + self.rank, self.rank)


@dataclass
class Convolution:
    """A causal convolution of each channel by itself: taps (tokens, channels) fp32, the last for the newest token."""

    taps: Tensor
    bias: Tensor | None
    activation: str | None

    @property
    def channels(self) -> int:
        return self.taps.shape[1]

    def state_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of the tokens that a sequence keeps for the next one."""
        return (len(self.taps) - 1) * self.channels * dtype.itemsize


class _Recurrent:
    """A mixer with a state: a convolution's last tokens, and a matrix, if it has one."""

    convolution: Convolution

    @property
    def matrix_bytes(self) -> int:
        return 0

    def state_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of a sequence's state."""
        return self.matrix_bytes + self.convolution.state_bytes(dtype)


@dataclass
class GatedNorm:
    """A norm over each `width` columns; silu of the gate multiplies its result or, if `gate_first`, its input."""

    norm: Norm
    width: int
    gate_first: bool


@dataclass
class DeltaNet(_Recurrent):
    """A gated delta net (https://arxiv.org/abs/2412.06464), whose state is a matrix for each head.

    Args:
        projection: gives queries, keys and values, head by head, then the result's gate.
        rates: gives a forget rate for each head, then an input rate for each head.
        convolution: of queries, keys and values.
        decay, decay_bias: (heads,) fp32; g = decay * softplus(forget rate + decay_bias).
        max_beta: beta = max_beta * sigmoid(input rate).
        norm: of each head's result.
    """

    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    projection: Stacked
    rates: Stacked
    convolution: Convolution
    decay: Tensor
    decay_bias: Tensor
    max_beta: float
    norm: GatedNorm
    output: Linear

    @property
    def matrix_bytes(self) -> int:
        return 4 * self.heads * self.key_dim * self.value_dim


@dataclass
class StateSpace(_Recurrent):
    """Mamba 2's state-space model (https://arxiv.org/abs/2405.21060), whose state is a matrix for each head.

    Args:
        size: of the state of each of a head's `dim` dimensions.
        projection: gives the input (x), head by head, then B and C, which heads of a group share, then the result's
            gate.
        steps: gives each head's step size (dt), before `step_bias` is added and softplus applied.
        convolution: of x, B and C.
        decay, step_bias, skipped: (heads,) fp32: A, dt's bias and D.
        least_step, most_step: limits of dt.
    """

    heads: int
    groups: int
    dim: int
    size: int
    projection: Stacked
    steps: Stacked
    convolution: Convolution
    decay: Tensor
    step_bias: Tensor
    skipped: Tensor | None
    least_step: float
    most_step: float
    norm: GatedNorm | None
    output: Linear

    @property
    def matrix_bytes(self) -> int:
        return 4 * self.heads * self.dim * self.size


@dataclass
class SelectiveStateSpace(_Recurrent):
    """Mamba's first state-space model (https://arxiv.org/abs/2312.00752): each number of the state has its own decay.

    Args:
        size: of the state of each channel.
        projection: gives the input (x), and the result's gate.
        convolution: of x.
        narrow: of the convolved x, gives what `steps` makes each channel's step size (dt) from, before `step_bias` is
            added and softplus applied.
        shared: of the convolved x, gives B and C, which all channels share.
        narrow_norm, shared_norm: norms of these results, of B and C each by itself.
        decay: (size, channels) fp32: A.
        step_bias, skipped: (channels,) fp32: dt's bias and D.
    """

    size: int
    projection: Stacked
    convolution: Convolution
    narrow: Stacked
    narrow_norm: Norm | None
    shared: Stacked
    shared_norm: Norm | None
    steps: Linear
    decay: Tensor
    step_bias: Tensor | None
    skipped: Tensor | None
    output: Linear

    @property
    def matrix_bytes(self) -> int:
        return 4 * self.size * self.convolution.channels


@dataclass
class ShortConvolution(_Recurrent):
    """A gated convolution; `projection` gives its input, and the factors of its input and of its result."""

    projection: Stacked
    convolution: Convolution
    output: Linear


AttentionMixer = Attention | LatentAttention
RecurrentMixer = DeltaNet | StateSpace | SelectiveStateSpace | ShortConvolution
Mixer = AttentionMixer | RecurrentMixer
