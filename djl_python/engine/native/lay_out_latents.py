"""Lays latent attention out: all heads' queries attend to the cached latents. Runs in the engine process, once."""

from __future__ import annotations

import torch

from ..coded_linear import tensors_of
from .lay_out_attention import CachePlaces, add_attention, add_heads
from .layout import STORE, STORE_FP32, Layout, Rows
from .mapped import let_go
from .places import cache_fields, heads_fit
from .pool import Kind
from .recipe_mixers import LatentAttention
from .recipe_parts import NotUnderstoodError


def lay_out_latents(layout: Layout, attention: LatentAttention, given: Rows, cache: CachePlaces, *, last: bool) -> Rows:
    """Lay out an attention without its output projection; returns the rows that `attention.output` reads.

    Args:
        last: once keys and values are stored, go on with only the rows whose logits are wanted.
    """
    shape = attention.shape
    heads, rank, turned = attention.heads, attention.rank, attention.turned
    part, value_dim = attention.key_rows.shape[1], attention.value_rows.shape[1]
    if not heads_fit(shape) or part % 2:
        raise NotUnderstoodError(f"a latent of {rank} dimensions, {part} and {turned} of a head's key")
    asking = given
    if attention.query_latent is not None and attention.query_norm is not None:
        columns = len(attention.query_norm.weight)
        asking = Rows(layout.project("query latents", attention.query_latent, given), columns)
        layout.add_norm_of_rows(attention.query_norm, asking.at, columns)
    queries, width = layout.project("queries", attention.queries, asking), heads * (part + turned)
    latents = layout.project("latents", attention.projection, given)
    fields = cache_fields(shape, cache.take(attention, layout.dtype))
    columns = fields["stride"]
    asked = layout.buffer("projected", columns, torch.float32)
    expansion = attention.expansion.numbers
    of_keys, of_values = expansion[attention.key_rows], expansion[attention.value_rows]
    layout.add_side_by_side(
        of_keys.transpose(1, 2), Rows(queries, width), asked + 4 * turned, dim=shape.key_dim, pitch=columns,
        mode=STORE_FP32, scale=1.0,
    )  # fmt: skip
    layout.add(
        Kind.LATENTS, in_=latents, weight=queries + heads * part * layout.dtype.itemsize, stride=width, out=asked,
        weight2=layout.keep(attention.norm.weight.contiguous()), eps=attention.norm.eps,
        heads=heads, dim=shape.key_dim, value_dim=rank, rotary=turned,
    )  # fmt: skip
    add_heads(layout, attention.rotary, fields, in_=asked)
    if last:
        (asked,) = layout.begin_late(("projected", columns, torch.float32, asked))
    weighed = layout.rows("weighed latents", heads * rank)
    add_attention(layout, attention, fields, asked, weighed)
    mixed = layout.rows("mixed", heads * value_dim)
    layout.add_side_by_side(of_values, weighed, mixed.at, dim=value_dim, pitch=mixed.stride, mode=STORE)
    let_go(tensors_of(attention.expansion.weight))
    return mixed
