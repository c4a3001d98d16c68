"""What a decoder computes, in the terms that `program` lays out. Runs in the engine process; no computation here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from .recipe_mixers import Attending, Mixer, Stateful
from .recipe_parts import Linear, Norm, OfExperts


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

    @property
    def near(self) -> int:
        """`Rotary.near` of those that have one, which is the checkpoint's."""
        return max((each.rotary.near for each in self.attentions if each.rotary is not None), default=0)

    def state_bytes(self, dtype: torch.dtype) -> int:
        """What a sequence has beside keys and values."""
        return sum(mixer.state_bytes(dtype) for mixer in self._mixers if isinstance(mixer, Stateful))

    @property
    def _mixers(self) -> list[Mixer]:
        return [branch.what for layer in self.layers for branch in layer.mixers]
