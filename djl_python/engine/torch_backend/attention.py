"""Attention over a paged KV cache, as a transformers attention function. Runs in the engine process.

transformers models look their attention up by name. Under the name `PAGED` they get `paged_attention`, which writes the
step's keys and values into the cache and attends to all that each sequence has there. So a model of any family runs on
a flat batch of tokens (1, T) without padding; rotary embeddings, projections, soft-capping, sinks and windows are the
model's own. A `PagedCache` decides how the cache is stored and what computes the attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..batch.scheduler import Chunk
from .masks import telling, window_in

PAGED: Final = "djl_paged"
# Tensors that models pass to every attention: what they say of the step's tokens, the plan says.
_OF_TOKENS: Final = frozenset({"position_ids", "cache_position"})


@dataclass(frozen=True)
class LayerShape:
    """Geometry of one attention layer, as its first call showed it.

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
    """

    scaling: float
    window: int
    softcap: float
    sinks: Tensor | None


class Plan(Protocol):
    """One step's tokens, and where they go in the cache.

    Attributes:
        order: the chunks, in their order in the flat batch.
        positions: (T,) position of each token in its sequence.
    """

    order: list[Chunk]
    positions: Tensor


class PagedCache(Protocol):
    """Keys and values of all layers, in blocks."""

    block_size: int

    def step(self, chunks: list[Chunk]) -> AbstractContextManager[Any]:
        """Context of a step with these chunks, which gives the `Plan` that `attend` takes."""
        ...

    def attend(self, layer: int, plan: Any, query: Tensor, key: Tensor, value: Tensor, how: AttentionParams) -> Tensor:
        """Store a layer's new keys and values, and attend to all that each sequence has in the cache.

        Args:
            query: (1, heads, T, key_dim); key, value: (1, kv_heads, T, dim).

        Returns:
            (1, T, heads, value_dim)
        """
        ...

    def close(self) -> None:
        """Free the cache, which is not used any more."""
        ...


# (module, query, key, value, result, scaling, sliding window or 0 or `masks.UNKNOWN`, softcap or 0, sinks)
Watcher = Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor, float, int, float, Tensor | None], None]


@dataclass
class _Active:
    cache: PagedCache
    plan: Plan
    layer_of: dict[int, int]
    windows: list[int]


_active: _Active | Watcher | None = None


@contextmanager
def attend_to(cache: PagedCache, plan: Plan, layer_of: dict[int, int], windows: list[int]) -> Iterator[None]:
    """Context in which a model whose attention is `PAGED` reads and writes `cache` as `plan` says.

    Args:
        layer_of: each attention layer's index, by id of its module.
        windows: each layer's window, 0 for none, where its calls don't say it.
    """
    global _active
    _active = _Active(cache, plan, layer_of, windows)
    try:
        yield
    finally:
        _active = None


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Context in which a model with `PAGED` attention attends to its own tokens alone, and `watcher` sees all calls.

    Only here does such a model make masks: a layer's window may be in its mask only.
    """
    global _active
    _active = watcher
    try:
        with telling(PAGED):
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
    **more: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in each layer.

    Args:
        query: (1, heads, T, key_dim); key, value: (1, kv_heads, T, dim): this step's tokens, flat.
        attention_mask: unused but for its window while the model is watched: the plan says which keys a query may see.

    Returns:
        (1, T, heads, value_dim), and no attention weights.

    Raises:
        ValueError: while the model is watched: it says more than this, such as which keys a query may see, or has
            other keys than those of its tokens.
    """
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    softcap = softcap or 0.0
    if callable(_active):
        if unread := [name for name, value in more.items() if isinstance(value, Tensor) and name not in _OF_TOKENS]:
            raise ValueError(f"its attention is also given {', '.join(unread)}")
        if key.shape[2] != query.shape[2]:
            raise ValueError(f"its attention has {key.shape[2]} keys for {query.shape[2]} tokens")
        window = sliding_window or window_in(attention_mask)
        how = AttentionParams(scaling, max(window, 0), softcap, s_aux)
        distance = torch.arange(query.shape[2], device=query.device)[:, None] - torch.arange(
            query.shape[2], device=query.device
        )
        mask = (distance >= 0) & (distance < (how.window or query.shape[2]))
        result = attention(query, key, value, mask, how).transpose(1, 2)
        _active(module, query, key, value, result, scaling, window, softcap, s_aux)
        return result, None
    assert _active is not None, "a model with paged attention runs inside attend_to()"
    layer = _active.layer_of[id(module)]
    how = AttentionParams(scaling, sliding_window or _active.windows[layer], softcap, s_aux)
    return _active.cache.attend(layer, _active.plan, query, key, value, how), None


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, how: AttentionParams) -> Tensor:
    """Scaled dot-product attention with grouped heads, on torch: (S, heads, queries, value_dim).

    Args:
        mask: (S, 1, queries, keys), true where a query may look; it includes the window, so `how.window` is ignored.
    """
    sequences, heads, queries, size = query.shape
    kv_heads = key.shape[1]
    # No call is told of groups: a GPU's kernels that take masks don't know them, and what torch does instead copies
    # keys and values for every query head. A group's queries lie side by side, as queries of its one key head.
    grouped = query.reshape(sequences, kv_heads, -1, size)
    if how.softcap or how.sinks is not None:
        scores = (grouped @ key.transpose(2, 3)).float().view(sequences, heads, queries, -1) * how.scaling
        made = _weights(scores, mask, how).to(value.dtype).view(*grouped.shape[:3], -1) @ value
    elif queries == 1 or heads == kv_heads:
        made = F.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=how.scaling)
    else:
        # Side by side, they would each need a copy of the mask. So each key head is a sequence of its own, with the
        # group's heads; with one sequence, as prompts come, nothing is copied.
        key, value = (each.flatten(0, 1)[:, None].expand(-1, heads // kv_heads, -1, -1) for each in (key, value))
        mask = mask if sequences == 1 else mask.repeat_interleave(kv_heads, 0)
        made = F.scaled_dot_product_attention(
            query.reshape(sequences * kv_heads, -1, queries, size), key, value, attn_mask=mask, scale=how.scaling
        )
    return made.reshape(sequences, heads, queries, -1)


def _weights(scores: Tensor, mask: Tensor, how: AttentionParams) -> Tensor:
    """What each value counts: (S, heads, queries, keys), of scores of the same shape."""
    if how.softcap:
        scores = torch.tanh(scores / how.softcap) * how.softcap
    scores = scores.masked_fill(~mask, float("-inf"))
    if how.sinks is None:
        return scores.softmax(-1)
    sink = how.sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat([scores, sink], -1).softmax(-1)[..., :-1]


def register() -> None:
    """Register `PAGED` with transformers. Unless watched, it is in no mask table: models that use it build no mask."""
    from transformers import AttentionInterface

    AttentionInterface.register(PAGED, paged_attention)
