"""Lays a recipe out as a list of operations. Runs in the engine process, once."""

from __future__ import annotations

import torch
from torch import Tensor

from .lay_out_attention import CachePlaces, lay_out_attention
from .lay_out_experts import lay_out_experts
from .lay_out_inputs import lay_out_branch, lay_out_inputs
from .lay_out_latents import lay_out_latents
from .lay_out_mlp import lay_out_mlp
from .lay_out_states import StatePlaces, lay_out_stateful
from .layout import STORE_FP32, Layout
from .pool import NORMS, Kind
from .recipe import Attending, Attention, Experts, LatentAttention, Layer, Recipe


def lay_out(layout: Layout, recipe: Recipe, cache: CachePlaces, states: StatePlaces) -> None:
    """Add everything that a step does.

    Raises:
        NotUnderstoodError: something is of a size that the kernels don't take.
    """
    head = layout.pack_head(recipe.head)
    weight = recipe.head.weight
    tied = isinstance(weight, Tensor) and weight.data_ptr() == recipe.embedding.data_ptr()
    embedded = layout.hidden if recipe.embedding_norm is None else layout.branch
    positions = None if recipe.positions is None else layout.keep(recipe.positions.to(layout.dtype).contiguous())
    table = {} if tied else {"weight": layout.keep(recipe.embedding.to(layout.dtype).contiguous())}
    layout.add(
        Kind.EMBED,
        n=layout.width,
        mode=int(tied),
        scale=recipe.embedding_scale,
        bias=positions,
        k=recipe.position_offset,
        out=embedded,
        **(layout.weights(head) if tied else table),
    )
    if recipe.embedding_norm is not None:
        layout.add_norm(recipe.embedding_norm, embedded, layout.hidden, mode=STORE_FP32)
    if recipe.token_inputs is not None:
        lay_out_inputs(layout, recipe.token_inputs, len(recipe.layers))
    # From there on nobody reads what a token leaves behind but those whose logits are wanted.
    last = max(i for i, layer in enumerate(recipe.layers) if _remembers(layer))
    for i, layer in enumerate(recipe.layers):
        _lay_out_layer(layout, layer, cache, states, last=i == last)
        if layer.token_branch is not None:
            lay_out_branch(layout, layer.token_branch, i)
        if layer.factor != 1:
            factors = layout.keep(torch.full((layout.width,), layer.factor))
            layout.add(
                Kind.NORM, n=layout.width, norm=NORMS[None], weight=factors, in_=layout.hidden, out=layout.hidden,
                mode=STORE_FP32,
            )  # fmt: skip
    layout.add_norm(recipe.final_norm, layout.hidden, layout.normed)
    layout.add_linear(head, layout.normed, None, mode=STORE_FP32, scale=recipe.head_scale, softcap=recipe.head_softcap)


def _remembers(layer: Layer) -> bool:
    """Whether later tokens read something that a token leaves there."""
    return layer.mixer is not None and not (isinstance(layer.mixer, Attending) and layer.mixer.reads is not None)


def _lay_out_layer(layout: Layout, layer: Layer, cache: CachePlaces, states: StatePlaces, *, last: bool) -> None:
    mixed = 0
    if layer.mixer is not None:
        layout.add_norm(layer.before_mixer, layout.hidden, layout.normed)
        if isinstance(layer.mixer, Attention):
            mixed = lay_out_attention(layout, layer.mixer, cache, last=last)
        elif isinstance(layer.mixer, LatentAttention):
            mixed = lay_out_latents(layout, layer.mixer, cache, last=last)
        else:
            mixed = lay_out_stateful(layout, layer.mixer, states, last=last)
    if layer.parallel:  # the MLP reads the stream as it was before the mixer's branch
        layout.add_norm(layer.before_mlp, layout.hidden, layout.normed)
    if layer.mixer is not None:
        layout.add_branch(layer.mixer.output, mixed, layer.after_mixer, layer.scale)
    if layer.mlp is not None and not layer.parallel:
        layout.add_norm(layer.before_mlp, layout.hidden, layout.normed)
    if isinstance(layer.mlp, Experts):
        lay_out_experts(layout, layer.mlp, layer.after_mlp, layer.scale)
    elif layer.mlp is not None:
        layout.add_branch(layer.mlp.down, lay_out_mlp(layout, layer.mlp), layer.after_mlp, layer.scale)
