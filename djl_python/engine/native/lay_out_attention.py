"""Lays attention out: projection, heads into the KV cache, attention over it. Runs in the engine process, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .layout import STORE_FP32, Layout, Rows
from .places import cache_fields, heads_fit
from .pool import Kind
from .recipe_mixers import Attending, Attention
from .recipe_parts import NotUnderstoodError, Rotary


@dataclass
class CachePlaces:
    """Addresses of the layers' keys and values in the first block of the KV cache.

    Args:
        next: address for the next layer.
        begins: addresses of the attentions so far.
    """

    next: int
    block_size: int
    begins: list[int] = field(default_factory=list)

    def take(self, attention: Attending, dtype: torch.dtype) -> int:
        """Address of an attention's keys and values in the first block; may be that of another that it reads."""
        if attention.reads is None:
            self.begins.append(self.next)
            self.next += attention.shape.block_bytes(self.block_size, dtype)
        else:
            self.begins.append(self.begins[attention.reads])
        return self.begins[-1]


def lay_out_attention(layout: Layout, attention: Attention, given: Rows, cache: CachePlaces, *, last: bool) -> Rows:
    """Lay out an attention without its output projection; returns the rows that `attention.output` reads.

    Args:
        last: once keys and values are stored, go on with only the rows whose logits are wanted.
    """
    of_layer = attention.shape
    if not heads_fit(of_layer):
        raise NotUnderstoodError(f"heads of {attention.dim} and {attention.value_dim} dimensions")
    of_heads = attention.heads * attention.dim
    if attention.reads is None:
        of_heads += attention.kv_heads * (attention.dim + attention.value_dim)
    mixed_columns = attention.heads * attention.value_dim
    columns = of_heads + mixed_columns * attention.gated
    projected = layout.buffer("projected", columns, torch.float32)
    packed = layout.pack(attention.projection.joined(), of=attention.projection.parts)
    layout.add_linear(packed, given, projected, mode=STORE_FP32, scale=1.0)
    begin = cache.take(attention, layout.dtype)
    shape = cache_fields(of_layer, begin) | {"stride": columns}
    norms = {
        name: layout.keep(norm.weight.contiguous())
        for name, norm in (
            ("weight2", attention.query_norm),
            ("weight3", attention.key_norm),
            ("bias", attention.value_norm),
        )
        if norm is not None
    }
    eps = next((norm.eps for norm in (attention.query_norm, attention.key_norm) if norm is not None), 0.0)
    of_values = 0.0 if attention.value_norm is None else attention.value_norm.eps
    storing = shape if attention.reads is None else shape | {"keys": None}
    add_heads(
        layout, attention.rotary, storing, in_=projected, mode=int(attention.norms_across), eps=eps, softcap=of_values,
        **norms,
    )  # fmt: skip
    if last:
        (projected,) = layout.begin_late(("projected", columns, torch.float32, projected))
    mixed = layout.rows("mixed", mixed_columns)
    add_attention(layout, attention, shape, projected, mixed)
    if attention.gated:
        layout.add(
            Kind.GATE, n=mixed_columns, in_=projected + 4 * of_heads, out=mixed.at, stride=columns, pitch=mixed.stride
        )
    return mixed


def add_heads(layout: Layout, rotary: Rotary | None, fields: Mapping[str, Any], **more: Any) -> None:
    """Norm queries and keys, rotate them by position, and store keys and values in the cache as `fields` say."""
    turn: dict[str, Any] = {}
    if rotary is not None:
        turn = {
            "rotary": 2 * rotary.cosines.shape[1],
            "interleaved": int(rotary.interleaved),
            "cosines": layout.keep_in_order(rotary.cosines),
            "sines": layout.keep_in_order(rotary.sines),
        }
    layout.add(Kind.HEADS, **fields, **turn, **more)


def add_attention(layout: Layout, attention: Attending, fields: Mapping[str, Any], asked: int, mixed: Rows) -> None:
    """Attend to the cache with the queries that rows at `asked` begin with; results go to `mixed`."""
    by_head = {
        name: layout.keep(each.float().contiguous())
        for name, each in (("sinks", attention.sinks), ("slopes", attention.slopes))
        if each is not None
    }
    layout.add(
        Kind.ATTEND, in_=asked, out=mixed.at, pitch=mixed.stride, scale=attention.scale, softcap=attention.softcap,
        window=attention.window, **fields, **by_head,
    )  # fmt: skip
