"""Lays attention out: projection, heads into the cache, the walk over it. Runs in the engine process, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .layout import STORE_FP32, Layout
from .places import cache_fields, heads_fit
from .pool import Kind
from .recipe import Attention, NotUnderstoodError


@dataclass
class CachePlaces:
    """Where in a block of the cache the next layer's keys and values lie.

    Args:
        next: address in the first block.
    """

    next: int
    block_size: int


def lay_out_attention(layout: Layout, attention: Attention, cache: CachePlaces, *, last: bool) -> int:
    """Where `attention.output` finds what it reads.

    Args:
        last: of tokens whose logits nobody wants, keys and values are all that is needed.
    """
    of_layer = attention.shape
    if not heads_fit(of_layer):
        raise NotUnderstoodError(f"heads of {attention.dim} and {attention.value_dim} dimensions")
    of_heads = (attention.heads + attention.kv_heads) * attention.dim + attention.kv_heads * attention.value_dim
    mixed_columns = attention.heads * attention.value_dim
    columns = of_heads + mixed_columns * attention.gated
    projected = layout.buffer("projected", columns, torch.float32)
    packed = layout.pack(attention.projection.joined(), of=attention.projection.parts)
    layout.add_linear(packed, layout.normed, projected, mode=STORE_FP32, scale=1.0)
    shape = cache_fields(of_layer, cache.next, cache.block_size, layout.dtype) | {"stride": columns}
    cache.next += of_layer.block_bytes(cache.block_size, layout.dtype)
    turn: dict[str, Any] = {}
    if attention.rotary is not None:
        turn = {
            "rotary": 2 * attention.rotary.cosines.shape[1],
            "interleaved": int(attention.rotary.interleaved),
            "cosines": layout.keep_once(attention.rotary.cosines),
            "sines": layout.keep_once(attention.rotary.sines),
        }
    norms = {
        name: layout.keep(norm.weight.contiguous())
        for name, norm in (("weight2", attention.query_norm), ("weight3", attention.key_norm))
        if norm is not None
    }
    eps = next((norm.eps for norm in (attention.query_norm, attention.key_norm) if norm is not None), 0.0)
    layout.add(Kind.HEADS, mode=int(attention.norms_across), in_=projected, eps=eps, **shape, **turn, **norms)
    if last:
        (projected,) = layout.begin_late(("projected", columns, torch.float32, projected))
    mixed = layout.buffer("mixed", mixed_columns, layout.dtype)
    by_head = {
        name: layout.keep(each.float().contiguous())
        for name, each in (("sinks", attention.sinks), ("slopes", attention.slopes))
        if each is not None
    }
    layout.add(
        Kind.ATTEND, in_=projected, out=mixed, scale=attention.scale, softcap=attention.softcap,
        window=attention.window, **shape, **by_head,
    )  # fmt: skip
    if attention.gated:
        layout.add(Kind.GATE, n=mixed_columns, in_=projected + 4 * of_heads, out=mixed, stride=columns)
    return mixed
