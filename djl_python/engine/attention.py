"""Attention over the paged KV cache, as a transformers attention function. Runs in the engine process.

transformers models look their attention up by name; under the name `PAGED` they get `paged_attention`, which writes
the step's keys and values into the cache and attends to whatever each sequence has there. A model thus runs on a flat
batch of tokens (1, T) without padding, whatever its family: rotary embeddings, projections, soft-capping, sinks and
windows are the model's own.

Queries are grouped so that one kernel call serves many sequences: generating sequences (one query each) by similar
context length, prompt chunks one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

PAGED = "djl_paged"


@dataclass(frozen=True)
class LayerShape:
    """Cache geometry of one attention layer, as its first call showed it."""

    kv_heads: int
    key_dim: int
    value_dim: int


class KVCache:
    """Keys and values of all layers: per layer two tensors (blocks, block_size, kv_heads, dim)."""

    def __init__(
        self, layers: list[LayerShape], blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ):
        self.block_size = block_size
        self.keys = [_zeros((blocks, block_size, s.kv_heads, s.key_dim), dtype, device) for s in layers]
        self.values = [_zeros((blocks, block_size, s.kv_heads, s.value_dim), dtype, device) for s in layers]

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store one step's keys and values, (T, kv_heads, dim) each, at `slots` (T,): block * block_size + offset."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slots, key)
        self.values[layer].flatten(0, 1).index_copy_(0, slots, value)

    def read(self, layer: int, group: Group) -> tuple[Tensor, Tensor]:
        """Keys and values of a group's sequences: (S, kv_heads, context, dim) each, zero where nothing is known.

        A block's unwritten rest may hold a former owner's NaN, which no mask on the scores would stop.
        """
        unknown = ~group.mask(None).any(2).transpose(1, 2)[..., None]
        return tuple(  # type: ignore[return-value]
            tensor[group.blocks].flatten(1, 2)[:, : group.context].masked_fill_(unknown, 0).transpose(1, 2)
            for tensor in (self.keys[layer], self.values[layer])
        )

    @staticmethod
    def bytes_per_block(layers: list[LayerShape], block_size: int, dtype: torch.dtype) -> int:
        """Memory of one block over all layers."""
        return sum(s.kv_heads * (s.key_dim + s.value_dim) for s in layers) * block_size * dtype.itemsize


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros whose memory the operating system gives only when it is written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros((*shape[:-1], shape[-1] * dtype.itemsize), np.uint8)).view(dtype)


@dataclass
class Group:
    """Consecutive rows of the flat batch that one kernel call serves: S sequences of `queries` queries each.

    Attributes:
        blocks: (S, B) block numbers, padded with 0 beyond a sequence's own.
        positions: (S, queries) position of each query in its sequence.
        context: keys that matter, over all sequences: positions beyond it are cut off.
    """

    start: int
    stop: int
    queries: int
    blocks: Tensor
    positions: Tensor
    context: int
    _masks: dict[int | None, Tensor] = field(default_factory=dict)

    def mask(self, window: int | None) -> Tensor:
        """(S, 1, queries, context) true where a query may look; made once a step and window, not once a layer."""
        found = self._masks.get(window)
        if found is None:
            key = torch.arange(self.context, device=self.positions.device)
            distance = self.positions[:, :, None] - key
            found = distance >= 0
            if window is not None:
                found &= distance < window
            found = self._masks[window] = found[:, None]
        return found


@dataclass
class StepLayout:
    """Where one step's tokens go in the cache and what they attend to.

    Attributes:
        slots: (T,) the cache place of each token of the flat batch: block * block_size + offset.
        groups: cover the rows 0 .. T-1 in order.
    """

    slots: Tensor
    groups: list[Group]


# (module, query, key, value, result, scaling, sliding window or 0, softcap or 0, sinks)
Watcher = Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor, float, int, float, Tensor | None], None]


@dataclass
class _Active:
    cache: KVCache
    layout: StepLayout
    layer_of: dict[int, int]


_active: _Active | Watcher | None = None


@contextmanager
def attend_to(cache: KVCache, layout: StepLayout, layer_of: dict[int, int]) -> Iterator[None]:
    """Within it, a model whose attention is `PAGED` reads and writes `cache` as `layout` says."""
    global _active
    _active = _Active(cache, layout, layer_of)
    try:
        yield
    finally:
        _active = None


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Within it, a model whose attention is `PAGED` attends to its own tokens alone, and `watcher` sees every call."""
    global _active
    _active = watcher
    try:
        yield
    finally:
        _active = None


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in each layer.

    Args:
        query: (1, heads, T, key_dim); key, value: (1, kv_heads, T, dim): this step's tokens, flat.
        attention_mask: None: the layout knows who sees what.

    Returns:
        (1, T, heads, value_dim), and no attention weights.
    """
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    if callable(_active):
        distance = torch.arange(query.shape[2], device=query.device)[:, None] - torch.arange(
            query.shape[2], device=query.device
        )
        mask = (distance >= 0) & (distance < (sliding_window or query.shape[2]))
        result = _attend(query, key, value, mask, scaling, softcap, s_aux).transpose(1, 2)
        _active(module, query, key, value, result, scaling, sliding_window or 0, softcap or 0.0, s_aux)
        return result, None
    assert _active is not None, "a model with paged attention runs inside attend_to()"
    layer, cache, layout = _active.layer_of[id(module)], _active.cache, _active.layout
    cache.write(layer, layout.slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
    pieces = []
    for group in layout.groups:
        rows = query[0, :, group.start : group.stop]
        rows = rows.reshape(len(rows), -1, group.queries, query.shape[3]).transpose(0, 1)
        keys, values = cache.read(layer, group)
        out = _attend(rows, keys, values, group.mask(sliding_window), scaling, softcap, s_aux)
        pieces.append(out.transpose(1, 2).flatten(0, 1))
    return (pieces[0] if len(pieces) == 1 else torch.cat(pieces))[None], None


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scaling: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Scaled dot-product attention with grouped heads: (S, heads, queries, value_dim)."""
    if softcap is None and sinks is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
        )
    repeat = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
    scores = (query @ key.transpose(2, 3)).float() * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        sink = sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    return weights.to(value.dtype) @ value


def register() -> None:
    """Make `PAGED` known to transformers. Models that use it build no mask: it is in no mask table."""
    from transformers import AttentionInterface

    AttentionInterface.register(PAGED, paged_attention)
