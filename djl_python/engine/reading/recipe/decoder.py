"""The recipe of a decoder: its layers, MLPs, experts, embedding and head.

Runs in the engine process; nothing is computed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from ...checkpoints.linears import Linear
from ...checkpoints.weights import Weight
from .mixers import AttentionMixer, Mixer, RecurrentMixer
from .primitives import ExpertLinears, Norm


@dataclass
class Mlp:
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))) without a gate.

    Args:
        activation: a name of `activations.FUNCTIONS`, or "xielu".
        curve: for "xielu" only: factors of x * x above zero, of exp(x) - 1 - x below zero, and of x.
    """

    gate: Linear | None
    up: Linear
    activation: str
    down: Linear
    curve: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class ExpertGroups:
    """Runs of equally many experts; a token goes only to experts of the `taken` best groups.

    Args:
        count: number of groups.
        ranks: a group's rank is the sum of this many of its experts' greatest ranks.
    """

    count: int
    taken: int
    ranks: int


@dataclass
class Router:
    """Chooses the experts that a token goes to, and their weights.

    Args:
        scores: a linear with one output for each expert.
        function: "softmax" or "sigmoid", which makes values from scores; the `chosen` best experts' are the weights.
        correction: added to the values for the choice, not to the weights.
        groups: restrict the choice to the experts of some groups.
        normalized: the weights are made to add up to 1.
        scale: then multiplies the weights.
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
    """A mixture of MLPs: a token's result is the weighted sum of its experts' results, plus that of a shared MLP.

    Args:
        gate, up, down: an expert's MLP is down(activation(gate(x)) * up(x)), or down(activation(up(x))) without a gate.
        activation: a name of `activations.FUNCTIONS`, or "clamped_swiglu", which has an `alpha` and a `limit`.
        shared: an MLP for all tokens, if any, times the sigmoid of `shared_gate` if there is one.
    """

    router: Router
    gate: ExpertLinears | None
    up: ExpertLinears
    activation: str
    down: ExpertLinears
    alpha: float
    limit: float
    shared: Mlp | None
    shared_gate: Linear | None


@dataclass
class TokenInputs:
    """Per-layer token inputs beside the stream: (norm(projection(x)) + table[id]) * scale, x the embedded token.

    Args:
        table: (vocabulary, layers * width): columns for each layer, as the projection has; the norm is over a layer's.
        table_scale: multiplies the table's rows.
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
    """x += after(mlp(x)); before its down projection, the MLP multiplies by the layer's `TokenInputs`."""

    mlp: Mlp
    after: Norm | None


Body = TypeVar("Body")


@dataclass
class Branch(Generic[Body]):
    """scale * after(body(before(x))), which is added to x."""

    before: Norm | None
    body: Body
    after: Norm | None
    scale: float


@dataclass
class Layer:
    """x += the mixers' branches, which all read the same x; then the MLP's branch, which also does if `parallel`.

    Then a `token_branch`, if any, and x *= factor. In post-norm layers, as of the first transformers, x itself goes
    through `mixed_norm` before the MLP reads it, and through `end_norm` at the end.
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

    embedding: Weight
    embedding_scale: float
    embedding_projection: Linear | None  # to the width of the layers, if the table is narrower
    positions: Tensor | None  # position embeddings, added to the embedding
    position_offset: int
    embedding_norm: Norm | None  # of the sum
    layers: list[Layer]
    final_norm: Norm | None
    head_projection: Linear | None  # to the width of the head's input, if that is narrower
    head: Linear
    head_scale: float
    head_softcap: float
    token_inputs: TokenInputs | None = None
    embedding_module: nn.Module | None = None  # that `embedding` is the table of

    @property
    def width(self) -> int:
        """Width of the residual stream."""
        projection = self.embedding_projection
        return int(self.embedding.shape[1]) if projection is None else len(projection.weight)

    @property
    def caches(self) -> list[AttentionMixer]:
        """Attentions with keys and values of their own."""
        return [attention for attention in self.attentions if attention.reads is None]

    @property
    def attentions(self) -> list[AttentionMixer]:
        return [mixer for mixer in self._mixers if isinstance(mixer, AttentionMixer)]

    @property
    def short_context(self) -> int:
        """`Rotary.short_rows` of the attentions that have one, which is the same for the whole checkpoint."""
        return max((each.rotary.short_rows for each in self.attentions if each.rotary is not None), default=0)

    def state_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of a sequence's recurrent states."""
        return sum(mixer.state_bytes(dtype) for mixer in self._mixers if isinstance(mixer, RecurrentMixer))

    @property
    def _mixers(self) -> list[Mixer]:
        return [branch.body for layer in self.layers for branch in layer.mixers]
