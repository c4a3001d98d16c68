"""What a decoder computes, in the terms that `program` lays out. Runs in the engine process; no computation here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from ..attention import LayerShape
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
    """cos and sin of half the rotated dimensions, (positions, rotated / 2) fp32."""

    cosines: Tensor
    sines: Tensor
    interleaved: bool


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


@dataclass
class Mlp:
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))) without a gate.

    Args:
        curve: of "xielu", which is of no other: what x * x counts above zero, exp(x) - 1 - x below, and x itself.
    """

    gate: Linear | None
    up: Linear
    activation: str
    down: Linear
    curve: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class ExpertGroups:
    """Runs of as many experts each, of which a token goes to those of the `taken` best groups alone.

    Args:
        count: of groups.
        ranks: so many of a group's greatest ranks, added up, are the group's own.
    """

    count: int
    taken: int
    ranks: int


@dataclass
class Router:
    """Which experts a token goes to, and what each counts.

    Args:
        scores: one for each expert.
        function: "softmax" or "sigmoid", which makes values of scores; the greatest `chosen` are taken.
        correction: added to the values for the choice, not to what the chosen count.
        groups: whose experts alone can be chosen.
        normalized: the chosen values are made to add up to 1.
        scale: then multiplies them.
    """

    scores: Linear
    chosen: int
    function: str
    correction: Tensor | None
    groups: ExpertGroups | None
    normalized: bool
    scale: float


@dataclass
class Experts:
    """A mixture of MLPs: each token's is the weighted sum of those of the experts it goes to, and of a shared one.

    Args:
        gate, up, down: as `Mlp` has them.
        activation: as in `Mlp`, or "clamped_swiglu", which has an `alpha` and a `limit`.
        shared: an MLP for all tokens, times the sigmoid of `shared_gate` if there is one.
    """

    router: Router
    gate: OfExperts | None
    up: OfExperts
    activation: str
    down: OfExperts
    alpha: float
    limit: float
    shared: Mlp | None
    shared_gate: Linear | None


@dataclass
class TokenInputs:
    """What each layer is given of each token, beside the stream: (norm(projection(x)) + table[id]) * scale, x embedded.

    Args:
        table: (vocabulary, layers * width), of which each layer has its own columns, as have projection and norm.
        table_scale: multiplies what the table has.
    """

    table: Tensor
    table_scale: float
    projection: Linear
    norm: Norm
    scale: float

    @property
    def width(self) -> int:
        return len(self.norm.weight)


@dataclass
class TokenBranch:
    """x += after(mlp(x)), which multiplies by the layer's part of `TokenInputs` before it goes down."""

    mlp: Mlp
    after: Norm | None


Mixer = Attending | Stateful
What = TypeVar("What")


@dataclass
class Branch(Generic[What]):
    """scale * after(what(before(x))), which is added to x."""

    before: Norm | None
    what: What
    after: Norm | None
    scale: float


@dataclass
class Layer:
    """x += its mixers' branches, all of the same x; then the MLP's, of the same x too if `parallel`.

    Then, maybe, a `token_branch`; at last x *= factor. Where norms follow the sums, as in the first transformers, x
    itself goes through `mixed_norm` before the MLP reads it, and through `end_norm` at the end.
    """

    mixers: list[Branch[Mixer]]
    mlp: Branch[Mlp | Experts] | None
    parallel: bool
    token_branch: TokenBranch | None = None
    factor: float = 1.0
    mixed_norm: Norm | None = None
    end_norm: Norm | None = None


@dataclass
class Recipe:
    """A whole decoder."""

    embedding: Tensor
    embedding_scale: float
    embedding_projection: Linear | None  # to the width of the layers, where tokens are narrower
    positions: Tensor | None  # learned, added to the embedding
    position_offset: int
    embedding_norm: Norm | None  # then
    layers: list[Layer]
    final_norm: Norm | None
    head_projection: Linear | None  # to what the head reads, where that is narrower
    head: Linear
    head_scale: float
    head_softcap: float
    token_inputs: TokenInputs | None = None

    @property
    def width(self) -> int:
        """Of the residual stream."""
        projection = self.embedding_projection
        return int(self.embedding.shape[1]) if projection is None else len(projection.weight)

    @property
    def caches(self) -> list[Attending]:
        """Those with keys and values of their own."""
        return [attention for attention in self.attentions if attention.reads is None]

    @property
    def attentions(self) -> list[Attending]:
        return [mixer for mixer in self._mixers if isinstance(mixer, Attending)]

    def state_bytes(self, dtype: torch.dtype) -> int:
        """What a sequence has beside keys and values."""
        return sum(mixer.state_bytes(dtype) for mixer in self._mixers if isinstance(mixer, Stateful))

    @property
    def _mixers(self) -> list[Mixer]:
        return [branch.what for layer in self.layers for branch in layer.mixers]
