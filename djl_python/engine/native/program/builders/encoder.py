"""Builds all operations of an encoder from its recipe. Runs in the engine process, once."""

from __future__ import annotations

from ....reading.recipe.encoder import EncoderRecipe
from ...abi.encoder import EmbedTextOp
from .attention import CacheLayout
from .builder import ProgramBuilder
from .decoder import build_layer
from .states import StateLayout


def build_encoder(builder: ProgramBuilder, recipe: EncoderRecipe, keys: int, block_size: int) -> None:
    """Add all operations: at the end, the builder's `hidden` has the hidden states.

    Args:
        keys: address of memory for one layer's keys and values, which all layers use, one after the other.
        block_size: tokens of a block of it.

    Raises:
        NotUnderstoodError: something is of a size that the kernels don't support.
    """
    embedding = recipe.embedding
    table, positions, types = (
        None if each is None else builder.keep(each.to(builder.dtype).contiguous())
        for each in (embedding.table, embedding.positions, embedding.types)
    )
    assert table is not None
    builder.add(
        EmbedTextOp(
            n=builder.width, out=builder.hidden, table=table, scale=embedding.scale, position_table=positions,
            type_table=types,
        )
    )  # fmt: skip
    builder.add_norm_of_stream(embedding.norm)
    for layer in recipe.layers:
        build_layer(builder, layer, CacheLayout(keys, block_size), StateLayout(0), last=False)
        builder.add_norm_of_stream(layer.end_norm)
    builder.add_norm_of_stream(recipe.final_norm)
