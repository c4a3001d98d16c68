"""Builds all operations of a decoder from its recipe. Runs in the engine process, once."""

from __future__ import annotations

import torch
from torch import Tensor

from ....checkpoints.dequantizing_linear import QuantizedWeight
from ....checkpoints.linears import Linear, RowOrigins
from ....checkpoints.weights import dense
from ....reading.recipe.decoder import Experts, Layer, Recipe
from ....reading.recipe.mixers import Attention, AttentionMixer, LatentAttention, Mixer
from ...abi.decoder import EmbedOp, NormOp
from ...abi.enums import Mode, NormKind
from ...abi.parts import Output, PackedWeight
from ...abi.structures import Operation
from ...packing import Packed
from .attention import CacheLayout, build_attention
from .builder import Adaptable, ProgramBuilder, Rows
from .experts import build_experts
from .latent_attention import build_latents
from .mlp import build_mlp
from .rescoring import build_rescoring
from .states import StateLayout, build_stateful
from .token_inputs import build_branch, build_inputs


def build_decoder(builder: ProgramBuilder, recipe: Recipe, cache: CacheLayout, states: StateLayout) -> list[Operation]:
    """Add all operations of a step; returns those that may take the place of the last one, the lm_head's product.

    Raises:
        NotUnderstoodError: something is of a size that the kernels don't support.
    """
    head = builder.pack(recipe.head, role="head")
    _build_embedding(builder, recipe, head)
    if recipe.token_inputs is not None:
        build_inputs(builder, recipe.token_inputs, len(recipe.layers))
    # After the last layer that stores something for later tokens, only the rows whose logits are wanted are needed.
    last = max(i for i, layer in enumerate(recipe.layers) if _remembers(layer))
    for i, layer in enumerate(recipe.layers):
        build_layer(builder, layer, cache, states, last=i == last)
        if layer.token_branch is not None:
            build_branch(builder, layer.token_branch, i)
        if layer.factor != 1:
            factors = builder.keep(torch.full((builder.width,), layer.factor))
            builder.add(
                NormOp(
                    n=builder.width, norm=NormKind.COPY, weight=factors, in_=builder.hidden, out=builder.hidden,
                    mode=Mode.STORE_FP32,
                )
            )  # fmt: skip
        builder.add_norm_of_stream(layer.end_norm)
    builder.add_normed(recipe.final_norm)
    read = builder.normed
    if recipe.head_projection is not None:
        packed = builder.pack(recipe.head_projection)
        read = builder.rows("narrow", packed.n)
        builder.add_linear(packed, builder.normed, Output(out=read.at, pitch=read.stride))
    logits = Output(mode=Mode.STORE_FP32, scale=recipe.head_scale, softcap=recipe.head_softcap)  # each step says where
    builder.add_linear(head, read, logits)
    return build_rescoring(builder, recipe.head, head, read, logits)


def _build_embedding(builder: ProgramBuilder, recipe: Recipe, head: Packed) -> None:
    """Start the residual stream; with tied weights, the embedding table is the lm_head's packed weight."""
    weight, projection, given = recipe.head.weight, recipe.embedding_projection, recipe.embedding
    table, packed = None, PackedWeight()
    if isinstance(given, QuantizedWeight):  # read from its codes, in the same order
        packed = builder.weight(head if given.is_of(weight) else builder.pack_exactly(Linear(given, None)))
    elif isinstance(weight, Tensor) and weight.data_ptr() == dense(given).data_ptr():
        packed = builder.weight(head)
    else:
        table = builder.keep(dense(given).to(builder.dtype).contiguous())
    scale, positions, offset = recipe.embedding_scale, None, recipe.position_offset
    first = len(builder.operations)
    if recipe.positions is not None:
        positions = builder.keep(recipe.positions.to(builder.dtype).contiguous())
    out = builder.hidden if recipe.embedding_norm is None else builder.branch
    if projection is None:
        builder.add(
            EmbedOp(
                n=builder.width,
                out=out,
                table=table,
                head=packed,
                scale=scale,
                positions=positions,
                position_offset=offset,
            )
        )
    else:
        columns = given.shape[1]
        narrow, rows = builder.buffer("embedded", columns, torch.float32), builder.rows("narrow", columns)
        builder.add(EmbedOp(n=columns, out=narrow, table=table, head=packed, scale=scale))
        builder.add(NormOp(n=columns, norm=NormKind.COPY, in_=narrow, out=rows.at, pitch=rows.stride))
        builder.add(EmbedOp(n=builder.width, out=out, positions=positions, position_offset=offset))
        builder.add_linear(builder.pack(projection), rows, Output(out=out, mode=Mode.ADD))
    looked_up = builder.operations[first]
    if recipe.embedding_module is not None and isinstance(looked_up, EmbedOp):
        origins = RowOrigins.of_module(recipe.embedding_module, looked_up.n)
        # An adapter has the module's own factor already.
        factor = scale / float(getattr(recipe.embedding_module, "embed_scale", 1.0))
        builder.adaptable.append(Adaptable(looked_up, None, (origins,), factor))
    if recipe.embedding_norm is not None:
        builder.add_norm(recipe.embedding_norm, out, builder.hidden, Mode.STORE_FP32)


def _remembers(layer: Layer) -> bool:
    """Whether the layer stores keys and values or a state, which later tokens read."""
    return any(not isinstance(each.body, AttentionMixer) or each.body.reads is None for each in layer.mixers)


def build_layer(builder: ProgramBuilder, layer: Layer, cache: CacheLayout, states: StateLayout, *, last: bool) -> None:
    """Build a layer, but for what comes behind its MLP.

    Args:
        last: go on with only the rows whose logits are wanted once its keys, values and states are stored.
    """
    # All mixers read the stream as it is before any branch is added, so their norms come first.
    given = [builder.normed_for(i) for i in range(len(layer.mixers))]
    for branch, normed in zip(layer.mixers, given, strict=True):
        builder.add_normed(branch.before, normed)
    for i, (branch, normed) in enumerate(zip(layer.mixers, given, strict=True)):
        mixed = _build_mixer(builder, branch.body, normed, cache, states, last=last and i + 1 == len(given))
        if layer.parallel and layer.mlp is not None and i + 1 == len(given):
            builder.add_normed(layer.mlp.before)
        builder.add_branch(builder.pack(branch.body.output, role="out"), mixed, branch.after, branch.scale)
    builder.add_norm_of_stream(layer.mixed_norm)
    if layer.mlp is None:
        return
    if not layer.parallel:
        builder.add_normed(layer.mlp.before)
    if isinstance(layer.mlp.body, Experts):
        build_experts(builder, layer.mlp.body, layer.mlp.after, layer.mlp.scale)
    else:
        inner = build_mlp(builder, layer.mlp.body)
        builder.add_branch(builder.pack(layer.mlp.body.down, role="out"), inner, layer.mlp.after, layer.mlp.scale)


def _build_mixer(
    builder: ProgramBuilder, mixer: Mixer, given: Rows, cache: CacheLayout, states: StateLayout, *, last: bool
) -> Rows:
    """Build a mixer without its output projection; returns the rows that the projection reads."""
    if isinstance(mixer, Attention):
        return build_attention(builder, mixer, given, cache, last=last)
    if isinstance(mixer, LatentAttention):
        return build_latents(builder, mixer, given, cache, last=last)
    return build_stateful(builder, mixer, given, states, last=last)
