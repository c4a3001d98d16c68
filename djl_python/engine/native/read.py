"""Reads a recipe from what was watched. Runs in the engine process, once.

From the recorded numbers, not from names, the layers are read: which linear makes queries, what a norm does, how
positions turn them, where a residual is added and with what factor. Each reading is checked against the recorded
tensors; what can't be explained raises `NotUnderstoodError`, and the model runs on torch.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..attention import PAGED
from ..images import MISFITS
from .layer_reader import LayerReader
from .near import factor_of, rounded, same
from .parts import as_linear, as_norm
from .read_attention import read_attention, rotaries
from .read_experts import experts_event, read_experts, router_event
from .read_mlp import FUNCTIONS, read_mlp
from .read_states import read_states
from .recipe import (
    Attention,
    DeltaNet,
    Experts,
    Layer,
    Linear,
    Mlp,
    Norm,
    NotUnderstoodError,
    Recipe,
    Rotary,
    ShortConvolution,
)
from .watch import Event, Watched, watch

_WINDOWS: Final = ("sliding_window", "window_size", "attention_window")


def read_recipe(model: Any, max_positions: int) -> Recipe:
    """Read a model whose attention is `PAGED`, or in plain operations.

    Raises:
        NotUnderstoodError: says at what.
    """
    try:
        return _read(model, max_positions)
    except MISFITS as misfit:  # it runs, or is made, otherwise than decoders are
        raise NotUnderstoodError(f"{type(misfit).__name__}: {misfit}") from misfit


@torch.inference_mode()
def _read(model: Any, max_positions: int) -> Recipe:
    # What would not show in numbers that are small enough, or in so few tokens.
    if any(getattr(each, "clip_qkv", None) for each in (model.config, getattr(model.config, "attn_config", None))):
        raise NotUnderstoodError("queries, keys and values are clipped")
    if model.config._attn_implementation != PAGED and any(getattr(model.config, name, None) for name in _WINDOWS):
        raise NotUnderstoodError("an attention of its own, with a window")
    if (getattr(model.config, "n_group", None) or 1) > (getattr(model.config, "topk_group", None) or 1):
        raise NotUnderstoodError("experts are chosen among groups")
    seen = watch(model)
    if not seen.calls:
        raise NotUnderstoodError("no layer has attention")
    turns = rotaries(model, seen, max_positions)
    layers = [_read_layer(seen, index, turns) for index in range(len(seen.spans))]
    return _read_ends(model, seen, layers)


def _read_layer(seen: Watched, index: int, turns: list[Rotary]) -> Layer:
    reader = LayerReader(seen, index)
    try:
        return _read_watched(reader, turns, seen.positions)
    except NotUnderstoodError as reason:
        raise NotUnderstoodError(f"layer {index}: {reason}") from reason


def _read_watched(reader: LayerReader, turns: list[Rotary], places: slice) -> Layer:
    mixer: Attention | DeltaNet | ShortConvolution
    if len(reader.calls) == 1 and not reader.called:
        mixer, linears = read_attention(reader, turns, places)
    else:
        mixer, linears = read_states(reader)
    mlp, mlp_input, mlp_output = _read_mlp_or_experts(reader, linears.rest)
    into_mixer = reader.norm_into(linears.given)
    if not same(linears.given if into_mixer is None else into_mixer[0].x, reader.given):
        raise NotUnderstoodError("the first linears do not read the layer's input")
    branch, after_mixer = _after(reader, linears.output_event.result)
    mlp_branch, after_mlp = _after(reader, mlp_output)
    into_mlp = reader.norm_into(mlp_input)
    source = mlp_input if into_mlp is None else into_mlp[0].x
    parallel = same(source, reader.given)
    scale = rounded(
        factor_of(branch, reader.result - reader.given - mlp_branch)
        if parallel
        else factor_of(branch, source - reader.given)
    )
    middle = reader.given.float() + scale * branch.float()
    if not parallel and not same(middle, source):
        raise NotUnderstoodError("the MLP reads something else than the residual stream")
    if not same(middle + scale * mlp_branch.float(), reader.result):
        raise NotUnderstoodError("its result is not the sum of its branches")
    return Layer(
        before_mixer=None if into_mixer is None else into_mixer[1],
        mixer=mixer,
        after_mixer=after_mixer,
        before_mlp=None if into_mlp is None else into_mlp[1],
        mlp=mlp,
        after_mlp=after_mlp,
        parallel=parallel,
        scale=scale,
    )


def _after(reader: LayerReader, x: Tensor) -> tuple[Tensor, Norm | None]:
    """A branch as it is added: through a norm of its own, or as it is."""
    found = reader.norm_of(x)
    return (x, None) if found is None else (found[0].result, found[1])


def _read_mlp_or_experts(
    reader: LayerReader, linears: list[tuple[Event, Linear]]
) -> tuple[Mlp | Experts, Tensor, Tensor]:
    """(the MLP, its input, its result)"""
    if (called := experts_event(reader.events)) is None:
        return read_mlp(linears)
    router = router_event(reader.events, called)
    experts, x, result = read_experts(called, router, FUNCTIONS)
    x, result = x[None], result[None]
    others = [(event, linear) for event, linear in linears if event.module is not router.module]
    if not others:
        return experts, x, result
    gates = [pair for pair in others if len(pair[1].weight) == 1]
    experts.shared, shared_input, shared_result = read_mlp([pair for pair in others if pair not in gates])
    if not same(shared_input, x):
        raise NotUnderstoodError("the shared expert reads something else than the others")
    if gates:
        ((event, experts.shared_gate),) = gates
        shared_result = shared_result * event.result.sigmoid().reshape(1, -1, 1)
    return experts, x, result + shared_result.reshape(result.shape)


def _first_row(table: Tensor, looked_up: Tensor) -> int:
    """Where in the table the consecutive rows (1, rows, columns) begin."""
    rows = looked_up[0]
    for first in (table == rows[0]).all(1).nonzero().flatten().tolist():
        if torch.equal(table[first : first + len(rows)], rows):
            return int(first)
    raise NotUnderstoodError("positions are not consecutive rows of a table")


def _read_ends(model: Any, seen: Watched, layers: list[Layer]) -> Recipe:
    table = model.get_input_embeddings()
    embedded = [e for e in seen.events if isinstance(e.module, nn.Embedding)]
    first = next((e for e in embedded if e.module is table), None)
    if first is None:
        raise NotUnderstoodError("the embedding is not a table")
    start = seen.spans[0].given.float()
    rows = torch.nn.functional.embedding(first.x, table.weight).float()
    others = [e for e in embedded if e.module is not table and e.result.numel() == rows.numel()]
    positions, offset = None, 0
    added: Tensor | float = 0.0
    if others:
        positions = others[0].module.weight.data
        looked_up = others[0].result.reshape(rows.shape)
        offset = _first_row(positions, looked_up) - seen.first_position
        added = looked_up.float()
    before = seen.events[: seen.spans[0].events.start]
    norm = next(((e, n) for e in before if (n := as_norm(e)) is not None and same(e.result, start)), None)
    stream = start if norm is None else norm[0].x.float()
    scale = rounded(factor_of(rows, stream - added))
    if not same(scale * rows + added, stream):
        raise NotUnderstoodError("the first layer does not read the embedding")
    end = seen.spans[-1].result
    final = next(
        (
            (e, n)
            for e in seen.events
            if (n := as_norm(e)) is not None and e.x.shape == end.shape and torch.equal(e.x, end)
        ),
        None,
    )
    hidden = end if final is None else final[0].result
    head_event = seen.events[-1]
    head = as_linear(head_event.module)
    if head is None or not torch.equal(head_event.x, hidden):
        raise NotUnderstoodError("the logits are not a linear of the last layer's normed result")
    made = head_event.result[0].float()
    head_scale = rounded(factor_of(made, seen.logits))
    # Small logits hardly show a soft cap, so that the configuration is asked first.
    softcap = float(getattr(model.config.get_text_config(decoder=True), "final_logit_softcapping", None) or 0)
    if softcap and same(torch.tanh(made / softcap) * softcap, seen.logits):
        head_scale = 1.0
    elif same(made * head_scale, seen.logits):
        softcap = 0.0
    else:
        raise NotUnderstoodError("the logits are changed in an unknown way")
    assert math.isfinite(head_scale)
    return Recipe(
        embedding=table.weight.data,
        embedding_scale=scale,
        positions=positions,
        position_offset=offset,
        embedding_norm=None if norm is None else norm[1],
        layers=layers,
        final_norm=None if final is None else final[1],
        head=head,
        head_scale=head_scale,
        head_softcap=softcap,
    )
