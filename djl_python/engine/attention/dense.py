"""Scaled dot-product attention over given keys and values, on torch. Runs in the engine process."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .parameters import AttentionParams


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, how: AttentionParams) -> Tensor:
    """Scaled dot-product attention with grouped heads, on torch: (S, heads, queries, value_dim).

    Args:
        mask: (S, 1, queries, keys), true where a query may look; it includes the window, so `how.window` is ignored.
            Or (S, heads, queries, keys), what is added to scores of heads that have keys of their own, where `how` has
            neither a softcap nor sinks: it includes `how.distance_bias`.
    """
    sequences, heads, queries, size = query.shape
    kv_heads = key.shape[1]
    # No call gets groups: a GPU's kernels with masks don't support them, and torch's fallback copies keys and values
    # for every query head. A group's queries lie side by side, as queries of its one key head.
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
    """The weight of each value: (S, heads, queries, keys), from scores of the same shape."""
    if how.softcap:
        scores = torch.tanh(scores / how.softcap) * how.softcap
    scores = scores.masked_fill(~mask, float("-inf"))
    if how.sinks is None:
        return scores.softmax(-1)
    sink = how.sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
