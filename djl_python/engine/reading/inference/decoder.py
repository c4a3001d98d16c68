"""Derives a recipe from a watched run. Runs in the engine process, at load.

Layers are read from the recorded numbers, not from names: which linear makes queries, what a norm does, how positions
rotate queries and keys, where a residual is added and with what factor. The numbers are those of a copy with random
weights, where equal numbers mean the same computation (`watching.copies`); trained weights are never looked at. What
can't be explained raises `NotUnderstoodError`, and the model runs on torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from ...call_errors import CALL_ERRORS
from ...checkpoints.rope import attends_in_chunks
from ..recipe.decoder import Experts, Layer, Recipe
from ..recipe.primitives import NotUnderstoodError, Rotary
from ..watching.copies import Copy, RandomNumbers, copy_model
from ..watching.run import TOKENS, WatchedRun, attention_calls_at, watch
from ..watching.windows import watch_windows
from .embedding import read_embedding
from .head import read_head
from .layer import read_layer
from .layer_record import LayerRecord
from .rotary import rotary_candidates
from .token_inputs import TokenInputsCall, read_token_inputs

# Largest relative difference of a layer's query or key norms at the first and the last positions.
_NORM_TOLERANCE: Final = 1e-3


def read_recipe(model: Any, max_positions: int) -> Recipe:
    """Read the recipe of a model whose attention is `PAGED`, or made of plain torch operations.

    Raises:
        NotUnderstoodError: something could not be explained; the message says what.
    """
    try:
        return _read(model, max_positions)
    except CALL_ERRORS as error:  # it is built or called unlike the decoders known here
        raise NotUnderstoodError(f"{type(error).__name__}: {error}") from error


@torch.inference_mode()
def _read(model: Any, max_positions: int) -> Recipe:
    # These would not show in so small numbers, or in so few tokens.
    if any(getattr(each, "clip_qkv", None) for each in (model.config, getattr(model.config, "attn_config", None))):
        raise NotUnderstoodError("queries, keys and values are clipped")
    if attends_in_chunks(model.config.get_text_config(decoder=True)):
        raise NotUnderstoodError("layers whose attention goes chunk by chunk")
    copy = copy_model(model, RandomNumbers())
    seen = watch(copy)
    watch_windows(copy.model, seen.attention_calls, max_positions)
    rotaries = rotary_candidates(copy.model, seen, max_positions)
    inputs = read_token_inputs(copy.model, seen)
    layers = [_read_layer(seen, index, rotaries, inputs) for index in range(len(seen.layers))]
    _check_groups(model.config, layers)
    if _has_slopes(model.config) and any(each.slopes is None for each in seen.attention_calls):
        raise NotUnderstoodError("a bias by position is configured, but not seen")
    embedding, head = read_embedding(copy, seen), read_head(copy, seen)
    if embedding.positions is None:
        _check_rotations(copy, seen, max_positions)
    return Recipe(
        embedding=embedding.table,
        embedding_scale=embedding.scale,
        embedding_projection=embedding.projection,
        positions=embedding.positions,
        position_offset=embedding.position_offset,
        embedding_norm=embedding.norm,
        layers=layers,
        final_norm=head.norm,
        head_projection=head.projection,
        head=head.linear,
        head_scale=head.scale,
        head_softcap=head.softcap,
        token_inputs=None if inputs is None else inputs.inputs,
        embedding_module=embedding.module,
    )


def _has_slopes(config: Any) -> bool:
    """Whether the configuration says that scores grow with the position."""
    return any(getattr(each, "alibi", False) is True for each in (config, getattr(config, "attn_config", None)))


def _check_rotations(copy: Copy, seen: WatchedRun, max_positions: int) -> None:
    """Check that the norms of queries and keys don't change with the position: rotations preserve them.

    Layer by layer, as a token may choose other experts at another position.
    """
    last = attention_calls_at(copy, max(seen.first_position, max_positions - TOKENS), seen.layers)
    for first_call, last_call in zip(seen.attention_calls, last or seen.attention_calls, strict=True):
        for name in ("query", "key"):
            first_norm, last_norm = (float(getattr(call, name).float().norm()) for call in (first_call, last_call))
            if abs(first_norm - last_norm) > _NORM_TOLERANCE * first_norm:
                raise NotUnderstoodError("queries or keys grow with the position")


def _check_groups(config: Any, layers: Sequence[Layer]) -> None:
    """Check that groups of experts were read if configured: few tokens may choose the same experts without them."""
    if (getattr(config, "n_group", None) or 1) <= (getattr(config, "topk_group", None) or 1):
        return
    mlps = (layer.mlp.body for layer in layers if layer.mlp is not None)
    if any(isinstance(mlp, Experts) and mlp.router.groups is None for mlp in mlps):
        raise NotUnderstoodError("experts are chosen among groups, but not as the router says")


def _read_layer(seen: WatchedRun, index: int, rotaries: list[Rotary], inputs: TokenInputsCall | None) -> Layer:
    record = LayerRecord(seen, index)
    try:
        return read_layer(record, rotaries, seen.positions, inputs)
    except NotUnderstoodError as reason:
        raise NotUnderstoodError(f"layer {index}: {reason}") from reason
