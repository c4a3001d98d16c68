"""Attention of single tokens over a paged cache, computed on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from djl_python.engine.attention.dense import attention
from djl_python.engine.attention.parameters import AttentionParams


def by_token(
    query: Tensor, keys: Tensor, values: Tensor, positions: Tensor, starts: Tensor, blocks: Tensor, how: AttentionParams
) -> Tensor:
    """What `token_attention.attend_by_token` computes, a token at a time."""
    made = []
    size = keys.shape[1]
    for token, (position, start) in enumerate(zip(positions.tolist(), starts.tolist(), strict=True)):
        own = blocks[start : start + position // size + 1]
        key, value = (cache[own].flatten(0, 1)[None, : position + 1].transpose(1, 2) for cache in (keys, values))
        distance = position - torch.arange(position + 1)
        seen = distance < (how.window or position + 1)
        made.append(attention(query[None, :, token, None], key, value, seen[None, None, None], how)[0, :, 0])
    return torch.stack(made)
