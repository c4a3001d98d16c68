"""What mixes a sequence's tokens: attention, and layers that keep a state. Runs in the engine process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..attention import LayerShape
from .recipe_parts import Linear, Norm, Rotary, Stacked


@dataclass
class Attention:
    """One layer's attention; `projection` gives queries, keys and values, head by head, in this order.

    If it is `gated`, the projection also gives a gate, as wide as the result, which that times its sigmoid goes on. The
    norms are of each head, or, `norms_across`, of all heads together. If it reads the keys and values of another, which
    is that one's place among the attentions, the projection gives queries only.
    """

    heads: int
    kv_heads: int
    dim: int
    value_dim: int
    scale: float
    softcap: float
    window: int
    sinks: Tensor | None
    slopes: Tensor | None  # (heads,): what a key's score gains with each position
    projection: Stacked
    query_norm: Norm | None
    key_norm: Norm | None
    value_norm: Norm | None
    norms_across: bool
    rotary: Rotary | None
    gated: bool
    reads: int | None
    output: Linear

    @property
    def shape(self) -> LayerShape:
        return LayerShape(self.heads, self.kv_heads, self.dim, self.value_dim)


@dataclass
class LatentAttention:
    """One layer's attention whose keys and values come of one latent a token (https://arxiv.org/abs/2405.04434).

    They are never made. What would make a head's keys, transposed, is done to its query, and what would make its values
    to the weighed sum of latents: so all heads read one key, what is turned by position and the latent, and one value.

    Args:
        turned: dimensions of a key that don't come of the latent.
        projection: gives the latent, before `norm`, and what is turned.
        query_latent, query_norm: what queries come of instead of the layer's input, if they do.
        queries: gives, head by head, what meets the latent; then, head by head, what is turned.
        expansion: of the latent, no bias: its rows `key_rows` (heads, dimensions) and `value_rows`, of each head.
    """

    heads: int
    turned: int
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
        """Of the latent."""
        return len(self.norm.weight)

    @property
    def shape(self) -> LayerShape:
        return LayerShape(self.heads, 1, self.turned + self.rank, self.rank)


@dataclass
class Convolution:
    """Of each channel by itself over the last tokens: taps (tokens, channels), the last for the newest; fp32."""

    taps: Tensor
    bias: Tensor | None
    activation: str | None

    @property
    def channels(self) -> int:
        return self.taps.shape[1]

    def state_bytes(self, dtype: torch.dtype) -> int:
        """What a sequence's tokens before the next one take."""
        return (len(self.taps) - 1) * self.channels * dtype.itemsize


class _WithState:
    """What keeps a state: a convolution's last tokens, and a matrix, if it has one."""

    convolution: Convolution

    @property
    def matrix_bytes(self) -> int:
        return 0

    def state_bytes(self, dtype: torch.dtype) -> int:
        """Of a sequence."""
        return self.matrix_bytes + self.convolution.state_bytes(dtype)


@dataclass
class GatedNorm:
    """The norm of each `width` columns by themselves; the gate's silu multiplies what it makes, or what it is given."""

    norm: Norm
    width: int
    gate_first: bool


@dataclass
class DeltaNet(_WithState):
    """A gated delta net (https://arxiv.org/abs/2412.06464), whose memory is a matrix for each head.

    Args:
        projection: gives queries, keys and values, head by head, then the result's gate.
        rates: gives, of each head, how much is forgotten, then how much is put in.
        convolution: of queries, keys and values.
        decay, decay_bias: (heads,) fp32; g = decay * softplus(what is forgotten + decay_bias).
        most_beta: times a sigmoid, what is put in.
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
    most_beta: float
    norm: GatedNorm
    output: Linear

    @property
    def matrix_bytes(self) -> int:
        return 4 * self.heads * self.key_dim * self.value_dim


@dataclass
class StateSpace(_WithState):
    """Mamba 2's state space (https://arxiv.org/abs/2405.21060), whose memory is a matrix for each head.

    Args:
        size: of what each of a head's `dim` dimensions remembers.
        projection: gives what comes in (x), head by head, then B and C, which heads of a group share, then the result's
            gate.
        steps: gives how far each head goes with a token, before `step_bias` is added and softplus taken.
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
class SelectiveSpace(_WithState):
    """Mamba's first state space (https://arxiv.org/abs/2312.00752): a channel forgets in as many ways as it remembers.

    Args:
        size: of what each channel remembers.
        projection: gives what comes in (x), and the result's gate.
        convolution: of x.
        narrow: of the convolved x, from which `steps` makes how far each channel goes with a token, before `step_bias`
            is added and softplus taken.
        shared: of the convolved x: B and C, of all channels.
        narrow_norm, shared_norm: what these go through, B and C each by itself.
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
class ShortConvolution(_WithState):
    """A convolution; `projection` gives what it reads, and what multiplies that before and after it."""

    projection: Stacked
    convolution: Convolution
    output: Linear


Attending = Attention | LatentAttention
Stateful = DeltaNet | StateSpace | SelectiveSpace | ShortConvolution
Mixer = Attending | Stateful
