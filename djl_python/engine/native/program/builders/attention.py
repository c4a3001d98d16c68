"""Lays attention out: projection, heads into the KV cache, attention over it. Runs in the engine process, once."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ....reading.recipe_mixers import Attending, Attention
from ....reading.recipe_parts import Norm, NotUnderstoodError, Rotary
from ...thread_pool import Mode
from ..operations import Into, gate
from ..operations_attention import HeadRows, Rotation, attend, heads
from ..step_arrays import head_rows, heads_fit
from .builder import Layout, Rows


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
    layout.add_linear(packed, given, Into(projected, Mode.STORE_FP32))
    rows = head_rows(of_layer, cache.take(attention, layout.dtype))._replace(stride=columns)

    def weight(norm: Norm | None) -> int | None:
        return None if norm is None else layout.keep(norm.weight.contiguous())

    layout.add(
        heads(
            rows=rows if attention.reads is None else rows._replace(cache=None), in_=projected,
            query_norm=weight(attention.query_norm), key_norm=weight(attention.key_norm),
            norms_across=attention.norms_across,
            eps=next((norm.eps for norm in (attention.query_norm, attention.key_norm) if norm is not None), 0.0),
            value_norm=weight(attention.value_norm),
            value_eps=0.0 if attention.value_norm is None else attention.value_norm.eps,
            rotation=rotation(layout, attention.rotary),
        )
    )  # fmt: skip
    if last:
        (projected,) = layout.begin_late(("projected", columns, torch.float32, projected))
    mixed = layout.rows("mixed", mixed_columns)
    add_attention(layout, attention, rows, projected, mixed)
    if attention.gated:
        opening = projected + 4 * of_heads
        layout.add(gate(n=mixed_columns, in_=opening, stride=columns, out=mixed.at, pitch=mixed.stride))
    return mixed


def rotation(layout: Layout, rotary: Rotary | None) -> Rotation | None:
    if rotary is None:
        return None
    cosines, sines = layout.keep_in_order(rotary.cosines), layout.keep_in_order(rotary.sines)
    return Rotation(2 * rotary.cosines.shape[1], rotary.interleaved, cosines, sines)


def add_attention(layout: Layout, attention: Attending, rows: HeadRows, asked: int, mixed: Rows) -> None:
    """Attend to the cache with the queries that rows at `asked` begin with; results go to `mixed`."""
    sinks, slopes = (
        None if each is None else layout.keep(each.float().contiguous()) for each in (attention.sinks, attention.slopes)
    )
    layout.add(
        attend(
            rows=rows, in_=asked, out=mixed.at, pitch=mixed.stride, scale=attention.scale, softcap=attention.softcap,
            window=attention.window, sinks=sinks, slopes=slopes,
        )
    )  # fmt: skip
