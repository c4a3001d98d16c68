"""Builds latent attention: all heads' queries attend to the cached latents. Runs in the engine process, once."""

from __future__ import annotations

import torch

from ....checkpoints.weights import tensors_of
from ....reading.recipe.mixers import LatentAttention
from ....reading.recipe.primitives import NotUnderstoodError
from ....runner.file_mapping import release_pages
from ...abi.decoder import LatentsOp, RopeKvCacheOp
from ...abi.enums import Mode
from ...abi.parts import Output
from ...kv_layout import head_rows, heads_fit
from .attention import CacheLayout, add_attention, rotation
from .builder import ProgramBuilder, Rows


def build_latents(
    builder: ProgramBuilder, attention: LatentAttention, given: Rows, cache: CacheLayout, *, last: bool
) -> Rows:
    """Build an attention without its output projection; returns the rows that `attention.output` reads.

    Args:
        last: once keys and values are stored, go on with only the rows whose logits are wanted.
    """
    shape = attention.shape
    heads, rank, turned = attention.heads, attention.rank, attention.rotated
    part, value_dim = attention.key_rows.shape[1], attention.value_rows.shape[1]
    if not heads_fit(shape) or part % 2:
        raise NotUnderstoodError(f"a latent of {rank} dimensions, {part} and {turned} of a head's key")
    asking = given
    if attention.query_latent is not None and attention.query_norm is not None:
        columns = len(attention.query_norm.weight)
        asking = Rows(builder.project("query latents", attention.query_latent, given), columns)
        builder.add_norm_of_rows(attention.query_norm, asking.at, columns)
    queries, width = builder.project("queries", attention.queries, asking), heads * (part + turned)
    latents = builder.project("latents", attention.projection, given)
    rows = head_rows(shape, cache.take(attention, builder.dtype))
    asked = builder.buffer("projected", rows.stride, torch.float32)
    expansion = attention.expansion.numbers
    of_keys, of_values = expansion[attention.key_rows], expansion[attention.value_rows]
    into = Output(out=asked + 4 * turned, mode=Mode.STORE_FP32, pitch=rows.stride)
    builder.add_side_by_side(of_keys.transpose(1, 2), Rows(queries, width), into, apart=shape.key_dim)
    builder.add(
        LatentsOp(
            in_=latents, out=asked, rank=rank, rotary=turned,
            norm=builder.keep(attention.norm.weight.contiguous()), eps=attention.norm.eps,
            query_rotary=queries + heads * part * builder.dtype.itemsize, stride=width, heads=heads, dim=shape.key_dim,
        )
    )  # fmt: skip
    builder.add(RopeKvCacheOp(rows=rows, in_=asked, rotation=rotation(builder, attention.rotary)))
    if last:
        (asked,) = builder.begin_late(("projected", rows.stride, torch.float32, asked))
    weighed = builder.rows("weighed latents", heads * rank)
    add_attention(builder, attention, rows, asked, weighed)
    mixed = builder.rows("mixed", heads * value_dim)
    builder.add_side_by_side(of_values, weighed, Output(out=mixed.at, pitch=mixed.stride), apart=value_dim)
    release_pages(tensors_of(attention.expansion.weight))
    return mixed
