"""Lays latent attention out: all heads' queries attend to the cached latents. Runs in the engine process, once."""

from __future__ import annotations

import torch

from ....checkpoints.coded_linear import tensors_of
from ....reading.recipe_mixers import LatentAttention
from ....reading.recipe_parts import NotUnderstoodError
from ...file_mapping import let_go
from ...thread_pool import Mode
from .. import operations_attention
from ..operations import Into
from ..step_arrays import head_rows, heads_fit
from .attention import CachePlaces, add_attention, rotation
from .builder import Layout, Rows


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
    rows = head_rows(shape, cache.take(attention, layout.dtype))
    asked = layout.buffer("projected", rows.stride, torch.float32)
    expansion = attention.expansion.numbers
    of_keys, of_values = expansion[attention.key_rows], expansion[attention.value_rows]
    into = Into(asked + 4 * turned, Mode.STORE_FP32, pitch=rows.stride)
    layout.add_side_by_side(of_keys.transpose(1, 2), Rows(queries, width), into, apart=shape.key_dim)
    layout.add(
        operations_attention.latents(
            in_=latents, out=asked, rank=rank, rotary=turned,
            latent_norm=layout.keep(attention.norm.weight.contiguous()), eps=attention.norm.eps,
            query_rotary=queries + heads * part * layout.dtype.itemsize, stride=width, heads=heads, dim=shape.key_dim,
        )
    )  # fmt: skip
    turn = rotation(layout, attention.rotary)
    layout.add(operations_attention.heads(rows=rows, in_=asked, rotation=turn))
    if last:
        (asked,) = layout.begin_late(("projected", rows.stride, torch.float32, asked))
    weighed = layout.rows("weighed latents", heads * rank)
    add_attention(layout, attention, rows, asked, weighed)
    mixed = layout.rows("mixed", heads * value_dim)
    layout.add_side_by_side(of_values, weighed, Into(mixed.at, pitch=mixed.stride), apart=value_dim)
    let_go(tensors_of(attention.expansion.weight))
    return mixed
