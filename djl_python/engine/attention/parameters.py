"""The geometry of an attention layer, and the parameters of its calls. Runs in the engine process."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LayerShape:
    """Geometry of one attention layer.

    Attributes:
        window: how many tokens a query sees, its own included; 0 for all.
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int = 0

    def block_bytes(self, block_size: int, dtype: torch.dtype) -> int:
        """Bytes of the layer's keys and values in one block."""
        return self.kv_heads * (self.key_dim + self.value_dim) * block_size * dtype.itemsize


@dataclass(frozen=True)
class AttentionParams:
    """Parameters of a layer's attention, beside queries, keys and values. Window and softcap are 0 for none.

    Attributes:
        sinks: (heads,) scores that take part in the softmax without a key or a value.
        distance_bias: (heads, distances) what is added to a score by how many tokens its key is before its query; the
            last is for all greater distances. None: nothing.
    """

    scaling: float
    window: int
    softcap: float
    sinks: Tensor | None
    distance_bias: Tensor | None = None
