"""Lays a recipe out as a list of operations. Runs in the engine process, once."""

from __future__ import annotations

import torch
from torch import Tensor

from ....reading.recipe import Experts, Layer, Recipe
from ....reading.recipe_mixers import Attending, Attention, LatentAttention, Mixer
from ...packing import Packed
from ...thread_pool import Mode, Op
from ..operations import Into, embed, norm
from .attention import CachePlaces, lay_out_attention
from .builder import Layout, Rows
from .experts import lay_out_experts
from .latent_attention import lay_out_latents
from .mlp import lay_out_mlp
from .rescoring import lay_out_pick
from .states import StatePlaces, lay_out_stateful
from .token_inputs import lay_out_branch, lay_out_inputs


def lay_out(layout: Layout, recipe: Recipe, cache: CachePlaces, states: StatePlaces) -> list[Op]:
    """Add all operations of a step; returns those that may take the place of the last one, the lm_head's product.

    Raises:
        NotUnderstoodError: something is of a size that the kernels don't support.
    """
    head = layout.pack_finely(recipe.head)
    _lay_out_embedding(layout, recipe, head)
    if recipe.token_inputs is not None:
        lay_out_inputs(layout, recipe.token_inputs, len(recipe.layers))
    # After the last layer that stores something for later tokens, only the rows whose logits are wanted are needed.
    last = max(i for i, layer in enumerate(recipe.layers) if _remembers(layer))
    for i, layer in enumerate(recipe.layers):
        _lay_out_layer(layout, layer, cache, states, last=i == last)
        if layer.token_branch is not None:
            lay_out_branch(layout, layer.token_branch, i)
        if layer.factor != 1:
            factors = layout.keep(torch.full((layout.width,), layer.factor))
            layout.add(
                norm(
                    n=layout.width, norm=None, weight=factors, in_=layout.hidden, out=layout.hidden,
                    mode=Mode.STORE_FP32,
                )
            )  # fmt: skip
        layout.add_norm_of_stream(layer.end_norm)
    layout.add_normed(recipe.final_norm)
    read = layout.normed
    if recipe.head_projection is not None:
        packed = layout.pack(recipe.head_projection)
        read = layout.rows("narrow", packed.n)
        layout.add_linear(packed, layout.normed, Into(read.at, pitch=read.stride))
    logits = Into(None, Mode.STORE_FP32, scale=recipe.head_scale, softcap=recipe.head_softcap)  # each step says where
    layout.add_linear(head, read, logits)
    return lay_out_pick(layout, recipe.head, head, read, logits)


def _lay_out_embedding(layout: Layout, recipe: Recipe, head: Packed) -> None:
    """Start the residual stream; with tied weights, the embedding table is the lm_head's packed weight."""
    weight, projection = recipe.head.weight, recipe.embedding_projection
    tied = isinstance(weight, Tensor) and weight.data_ptr() == recipe.embedding.data_ptr()
    table = layout.weights(head) if tied else layout.keep(recipe.embedding.to(layout.dtype).contiguous())
    scale, positions, offset = recipe.embedding_scale, None, recipe.position_offset
    if recipe.positions is not None:
        positions = layout.keep(recipe.positions.to(layout.dtype).contiguous())
    out = layout.hidden if recipe.embedding_norm is None else layout.branch
    if projection is None:
        layout.add(
            embed(n=layout.width, out=out, weight=table, scale=scale, positions=positions, position_offset=offset)
        )
    else:
        columns = recipe.embedding.shape[1]
        narrow, rows = layout.buffer("embedded", columns, torch.float32), layout.rows("narrow", columns)
        layout.add(embed(n=columns, out=narrow, weight=table, scale=scale))
        layout.add(norm(n=columns, norm=None, in_=narrow, out=rows.at, pitch=rows.stride))
        layout.add(embed(n=layout.width, out=out, positions=positions, position_offset=offset))
        layout.add_linear(layout.pack(projection), rows, Into(out, Mode.ADD))
    if recipe.embedding_norm is not None:
        layout.add_norm(recipe.embedding_norm, out, layout.hidden, Mode.STORE_FP32)


def _remembers(layer: Layer) -> bool:
    """Whether the layer stores keys and values or a state, which later tokens read."""
    return any(not isinstance(each.what, Attending) or each.what.reads is None for each in layer.mixers)


def _lay_out_layer(layout: Layout, layer: Layer, cache: CachePlaces, states: StatePlaces, *, last: bool) -> None:
    # All mixers read the stream as it is before any branch is added, so their norms come first.
    given = [layout.normed_for(i) for i in range(len(layer.mixers))]
    for branch, normed in zip(layer.mixers, given, strict=True):
        layout.add_normed(branch.before, normed)
    for i, (branch, normed) in enumerate(zip(layer.mixers, given, strict=True)):
        mixed = _lay_out_mixer(layout, branch.what, normed, cache, states, last=last and i + 1 == len(given))
        if layer.parallel and layer.mlp is not None and i + 1 == len(given):
            layout.add_normed(layer.mlp.before)
        layout.add_branch(layout.pack(branch.what.output), mixed, branch.after, branch.scale)
    layout.add_norm_of_stream(layer.mixed_norm)
    if layer.mlp is None:
        return
    if not layer.parallel:
        layout.add_normed(layer.mlp.before)
    if isinstance(layer.mlp.what, Experts):
        lay_out_experts(layout, layer.mlp.what, layer.mlp.after, layer.mlp.scale)
    else:
        inner = lay_out_mlp(layout, layer.mlp.what)
        layout.add_branch(layout.pack_finely(layer.mlp.what.down), inner, layer.mlp.after, layer.mlp.scale)


def _lay_out_mixer(
    layout: Layout, mixer: Mixer, given: Rows, cache: CachePlaces, states: StatePlaces, *, last: bool
) -> Rows:
    """Lay out a mixer without its output projection; returns the rows that the projection reads."""
    if isinstance(mixer, Attention):
        return lay_out_attention(layout, mixer, given, cache, last=last)
    if isinstance(mixer, LatentAttention):
        return lay_out_latents(layout, mixer, given, cache, last=last)
    return lay_out_stateful(layout, mixer, given, states, last=last)
