"""Derives a recipe from a watched run. Runs in the engine process, once.

Layers are read from the recorded numbers, not from names: which linear makes queries, what a norm does, how positions
rotate queries and keys, where a residual is added and with what factor. The numbers are those of a copy with random
weights, where equal numbers mean the same computation (`copies`); trained weights are never looked at. What can't be
explained raises `NotUnderstoodError`, and the model runs on torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from ...checkpoints.misfits import MISFITS
from ...checkpoints.rope import attends_in_chunks
from ..comparison import factor_of, same, settled
from ..linears import as_linear
from ..recipe.decoder import Experts, Layer, Recipe
from ..recipe.primitives import Linear, NotUnderstoodError, Rotary
from ..watching.copies import Copy, RandomNumbers, copy_model
from ..watching.run import TOKENS, ModuleCall, WatchedRun, attention_calls_at, watch
from ..watching.windows import watch_windows
from .layer import read_layer
from .layer_record import LayerRecord
from .norms import norm_call
from .rotary import rotary_candidates
from .token_inputs import TokenInputsCall, read_token_inputs

# Largest relative difference of a layer's query or key norms at near and far positions.
_AS_LONG: Final = 1e-3


def read_recipe(model: Any, max_positions: int) -> Recipe:
    """Read the recipe of a model whose attention is `PAGED`, or made of plain torch operations.

    Raises:
        NotUnderstoodError: something could not be explained; the message says what.
    """
    try:
        return _read(model, max_positions)
    except MISFITS as misfit:  # it is built or called unlike the decoders known here
        raise NotUnderstoodError(f"{type(misfit).__name__}: {misfit}") from misfit


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
    recipe = _read_ends(copy, seen, layers)
    recipe.token_inputs = None if inputs is None else inputs.inputs
    if recipe.positions is None:
        _check_far(copy, seen, max_positions)
    return recipe


def _has_slopes(config: Any) -> bool:
    """Whether the configuration says that scores grow with the position."""
    return any(getattr(each, "alibi", False) is True for each in (config, getattr(config, "attn_config", None)))


def _check_far(copy: Copy, seen: WatchedRun, max_positions: int) -> None:
    """Check that the norms of queries and keys don't change with the position: rotations preserve them.

    Layer by layer, as a token may choose other experts at another position.
    """
    far = attention_calls_at(copy, max(seen.first_position, max_positions - TOKENS), seen.layers)
    for near_by, far_away in zip(seen.attention_calls, far or seen.attention_calls, strict=True):
        for name in ("query", "key"):
            lengths = [float(getattr(call, name).float().norm()) for call in (near_by, far_away)]
            if abs(lengths[0] - lengths[1]) > _AS_LONG * lengths[0]:
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


def _looked_up(call: ModuleCall, rows: Tensor) -> tuple[Tensor, int] | None:
    """(the model's own table, index of the first row) of a module that returned consecutive rows of a table.

    Args:
        rows: (1, rows, columns), the shape of the rows that it returned.
    """
    if not isinstance(call.result, Tensor) or call.result.numel() != rows.numel():
        return None
    given = call.result.reshape(rows.shape)[0]
    for table, own in zip(_tables_of(call.copied), _tables_of(call.module), strict=True):
        if table.dim() != 2 or table.shape[1] != given.shape[1]:
            continue
        for first in (table == given[0]).all(1).nonzero().flatten().tolist():
            if torch.equal(table[first : first + len(given)], given):
                return own.data, int(first)
    return None


def _tables_of(module: nn.Module) -> Iterator[Tensor]:
    return itertools.chain(module.parameters(recurse=False), module.buffers(recurse=False))


def _through_a_linear(events: Sequence[ModuleCall], x: Tensor) -> tuple[ModuleCall, Linear] | None:
    """The linear among these events whose input was x."""
    found = ((e, linear) for e in events if (linear := as_linear(e.module)) is not None)
    return next(((e, linear) for e, linear in found if same(e.x, x)), None)


def _read_ends(copy: Copy, seen: WatchedRun, layers: list[Layer]) -> Recipe:
    table = copy.model.get_input_embeddings()
    embedded = [e for e in seen.module_calls if isinstance(e.module, nn.Embedding)]
    first = next((e for e in embedded if e.copied is table), None)
    if first is None:
        raise NotUnderstoodError("the embedding is not a table")
    start = seen.layers[0].input.float()
    rows = torch.nn.functional.embedding(first.x, table.weight).float()
    before = seen.module_calls[: seen.layers[0].module_calls.start]
    widened = _through_a_linear(before, rows)
    projection = None if widened is None else widened[1]
    if widened is not None:
        rows = widened[0].result.float()
    positions, offset = None, 0
    added: Tensor | float = 0.0
    for call in before:
        looked_up = None if call.copied is table else _looked_up(call, rows)
        if looked_up is not None:
            positions, offset = looked_up[0], looked_up[1] - seen.first_position
            added = call.result.reshape(rows.shape).float()
            break
    norm = next((n for e in before if (n := norm_call(e)) is not None and same(e.result, start)), None)
    stream = start if norm is None else norm.call.x.float()
    scale = settled(factor_of(rows, stream - added))
    if not same(scale * rows + added, stream) or (projection is not None and scale != 1):
        raise NotUnderstoodError("the first layer does not read the embedding")
    end = seen.layers[-1].result
    final = next(
        (
            n
            for e in seen.module_calls
            if (n := norm_call(e)) is not None and e.x.shape == end.shape and torch.equal(e.x, end)
        ),
        None,
    )
    hidden = end if final is None else final.call.result
    narrowed = _through_a_linear(seen.module_calls[seen.layers[-1].module_calls.stop : -1], hidden)
    if narrowed is not None:
        hidden = narrowed[0].result
    head_call = seen.module_calls[-1]
    head = as_linear(head_call.module)
    as_it_is = torch.equal(head_call.x, hidden.to(head_call.x.dtype))
    given_scale = 1.0 if as_it_is else factor_of(hidden, head_call.x)
    if head is None or not (as_it_is or same(given_scale * hidden, head_call.x)):
        raise NotUnderstoodError("the logits are not a linear of the last layer's normed result")
    made = head_call.result[0].float()
    head_scale = settled(factor_of(made, seen.logits))
    # A soft cap can't be told from its result, so the configuration is asked for it.
    softcap = float(getattr(copy.model.config.get_text_config(decoder=True), "final_logit_softcapping", None) or 0)
    if softcap and same(torch.tanh(made / softcap) * softcap, seen.logits):
        head_scale = 1.0
    elif same(made * head_scale, seen.logits):
        softcap = 0.0
    else:
        raise NotUnderstoodError("the logits are changed in an unknown way")
    assert math.isfinite(head_scale)
    return Recipe(
        embedding=first.module.weight.data,
        embedding_scale=scale,
        embedding_projection=projection,
        positions=positions,
        position_offset=offset,
        embedding_norm=None if norm is None else norm.norm,
        layers=layers,
        final_norm=None if final is None else final.norm,
        head_projection=None if narrowed is None else narrowed[1],
        head=head,
        head_scale=given_scale * head_scale,
        head_softcap=softcap,
    )
