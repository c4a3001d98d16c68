"""What an encoder computes, from token ids to hidden states. Runs in the engine process; nothing is computed here."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .decoder import Layer
from .mixers import Attention
from .primitives import Norm


@dataclass
class TextEmbedding:
    """norm(scale * table[id] + positions[place] + types[type]), the start of an encoder's stream.

    Attributes:
        table: (vocabulary, width)
        positions: (rows, width) learned positions; None: the model has none, or its layers use RoPE.
        first_place: the row of `positions` that a text's first token has.
        skipped_id: tokens with this id do not count as a position, and have the row before `first_place` (RoBERTa's
            padding); None: all count.
        types: (types, width); None: tokens have no types.
    """

    table: Tensor
    scale: float
    positions: Tensor | None
    first_place: int
    skipped_id: int | None
    types: Tensor | None
    norm: Norm | None


@dataclass
class EncoderRecipe:
    """An encoder whose layers have one attention each, all of the same shape."""

    embedding: TextEmbedding
    layers: list[Layer]
    final_norm: Norm | None

    @property
    def width(self) -> int:
        """Width of the hidden states."""
        return int(self.embedding.table.shape[1])

    @property
    def attentions(self) -> list[Attention]:
        """One of each layer."""
        return [branch.body for layer in self.layers for branch in layer.mixers if isinstance(branch.body, Attention)]
