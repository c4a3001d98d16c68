"""Explains a layer's attention: projection, norms of heads, rotary embedding. Runs in the engine process, at load."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ...checkpoints.linears import Linear
from ..comparison import distance, factor_of, rounded_factor, same
from ..recipe.mixers import Attention
from ..recipe.primitives import Norm, NotUnderstoodError, Rotary, Stacked
from ..watching.attention import AttentionCall
from ..watching.run import ModuleCall
from .columns import other_columns
from .layer_record import LayerRecord, Projections, side_by_side
from .norms import NormCall, normed
from .rotary import rotate


def read_attention(record: LayerRecord, rotaries: Sequence[Rotary], positions: slice) -> tuple[Attention, Projections]:
    """The layer's only attention, and its linears.

    Raises:
        NotUnderstoodError: it could not be explained.
    """
    (call,) = record.attention_calls
    _, heads, _, dim = call.query.shape
    kv_heads, value_dim = call.key.shape[1], call.value.shape[3]
    gate: Tensor | None = None
    result = call.result.reshape(1, call.result.shape[1], -1)

    def takes(x: Tensor, before: list[tuple[ModuleCall, Linear]]) -> bool:
        nonlocal gate
        if x.shape != result.shape:
            return False
        if torch.equal(x, result.to(x.dtype)):
            return True
        made = side_by_side(before)
        gate = next((each for each in _gates(before, heads, dim) if _is_gated(made[:, each], result, x)), None)
        return gate is not None

    linears = record.projections(takes)
    gates = 0 if gate is None else len(gate)
    reads = None
    if linears.outputs.shape[1] == heads * dim + gates:  # the projection gives queries only
        reads = next((i for i, each in enumerate(record.earlier) if _same_cache(each, call)), None)
    projection, made = _projection(linears, call, gate, reads is None)
    of_queries = _changes((_by_head(made[:, : heads * dim], heads), call.query[0]), record.norms, rotaries, positions)
    of_keys, of_values = [_UNCHANGED], [_UNCHANGED]
    if reads is None:
        _, keys, values, _ = torch.split(made, [heads * dim, kv_heads * dim, kv_heads * value_dim, gates], -1)
        of_keys = _changes((_by_head(keys, kv_heads), call.key[0]), record.norms, rotaries, positions)
        of_values = _changes((_by_head(values, kv_heads), call.value[0]), record.norms, [], positions)
    pairs = ((q, k) for q in of_queries for k in of_keys if reads is not None or (q.rotary is k.rotary and q.fits(k)))
    # The nearest, not the first that is near: so early in a text, two rotations may differ by less than rounding.
    query_change, key_change = min(pairs, key=lambda pair: pair[0].error + pair[1].error, default=(None, None))
    if query_change is None or key_change is None:
        raise NotUnderstoodError("queries or keys are changed in an unknown way after their projection")
    value_change = next((each for each in of_values if each.factor == 1 and not each.across), None)
    if value_change is None:
        raise NotUnderstoodError("values are not a projection")
    scale = call.scale * query_change.factor * key_change.factor
    attention = Attention(
        heads=heads,
        kv_heads=kv_heads,
        dim=dim,
        value_dim=value_dim,
        scale=dim**-0.5 * rounded_factor(scale * dim**0.5),
        softcap=call.softcap,
        window=call.window,
        sinks=None if call.sinks is None else record.own_numbers(call.sinks),
        slopes=call.slopes,
        projection=projection,
        query_norm=query_change.norm,
        key_norm=key_change.norm,
        value_norm=value_change.norm,
        norms_across=query_change.across or key_change.across,
        rotary=query_change.rotary,
        gated=gate is not None,
        reads=reads,
        output=linears.output,
        ahead=call.ahead,
    )
    return attention, linears


def _same_cache(one: AttentionCall, other: AttentionCall) -> bool:
    """Whether two attentions read the same keys and values."""
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in ((one.key, other.key), (one.value, other.value)))


def _by_head(columns: Tensor, heads: int) -> Tensor:
    """(tokens, heads * dim) -> (heads, tokens, dim)"""
    return columns.reshape(len(columns), heads, -1).transpose(0, 1)


def _gates(before: list[tuple[ModuleCall, Linear]], heads: int, dim: int) -> Iterator[Tensor]:
    """Candidate columns of the input projections' results for a gate of the attention's result."""
    starts = itertools.accumulate((len(linear.weight) for _, linear in before), initial=0)
    for start, (_, linear) in zip(starts, before, strict=False):
        columns = torch.arange(start, start + len(linear.weight))
        if len(columns) == heads * dim:
            yield columns
        elif len(columns) == 2 * heads * dim:  # in one linear with the queries: head by head, or after all of them
            yield columns.view(heads, 2, dim)[:, 1].flatten()
            yield columns.chunk(2)[1]


def _is_gated(gate: Tensor, result: Tensor, x: Tensor) -> bool:
    """Whether x is the attention's result times the sigmoid of a gate."""
    return gate.shape == result.shape[1:] and same(result[0].float() * gate.float().sigmoid(), x)


def _projection(linears: Projections, call: AttentionCall, gate: Tensor | None, stores: bool) -> tuple[Stacked, Tensor]:
    """Queries, keys, values and the gate as one linear, and its result (tokens, columns) fp32."""
    result, parts = linears.outputs.float(), linears.linears
    heads, dim = call.query.shape[1], call.query.shape[3]
    kv_heads, value_dim = call.key.shape[1], call.value.shape[3]
    gates = 0 if gate is None else len(gate)
    stored = kv_heads * (dim + value_dim) if stores else 0
    if result.shape[1] != heads * dim + stored + gates:
        raise NotUnderstoodError("the linears before the attention make more than queries, keys and values")
    order: Tensor | None = None
    if gate is not None:
        order = torch.cat([other_columns(gate, result.shape[1]), gate])
    elif len(parts) == 1 and stores and dim == value_dim:
        order = _order(result, call)
    return Stacked(parts, order), result if order is None else result[:, order]


def _order(made: Tensor, call: AttentionCall) -> Tensor | None:
    """Order of one linear's columns as queries, keys, values; None if they lie so, or no order explains the values."""
    heads, kv_heads, dim = call.query.shape[1], call.key.shape[1], call.query.shape[3]
    value = call.value[0].transpose(0, 1).flatten(1)
    columns = kv_heads * dim
    if same(made[:, -columns:], value):
        return None
    # In groups of heads, with one key head each or more; values after keys or before them.
    for groups in (each for each in range(kv_heads, 0, -1) if kv_heads % each == 0):
        by_group = torch.arange(made.shape[1]).view(groups, -1, dim)
        keys = kv_heads // groups
        queries, one, other = (part.flatten() for part in torch.split(by_group, [heads // groups, keys, keys], 1))
        for order in (torch.cat([queries, one, other]), torch.cat([queries, other, one])):
            if same(made[:, order[-columns:]], value):
                return order
    return None


@dataclass(frozen=True)
class _Change:
    """A possible step between a projection and the attention: a norm, a rotation by position, a factor."""

    norm: Norm | None
    across: bool  # the norm is over all heads at once
    rotary: Rotary | None
    factor: float
    error: float  # relative distance from what was recorded

    def fits(self, other: _Change) -> bool:
        """Whether both norms, if there are two, are over the same: each head, or all heads."""
        return self.norm is None or other.norm is None or self.across == other.across


_UNCHANGED: Final = _Change(None, False, None, 1.0, 0.0)


def _changes(
    pair: tuple[Tensor, Tensor], norms: Sequence[NormCall], rotaries: Sequence[Rotary], positions: slice
) -> list[_Change]:
    """Every change that turns a pair's first into its second, (heads, tokens, dim) each, at these positions."""
    before, after = pair
    heads, _, dim = before.shape
    flat = before.transpose(0, 1).flatten(1)
    entering: list[tuple[Norm | None, bool, Tensor]] = [(None, False, before)]
    for seen in norms:
        norm, x = seen.copied, seen.call.x
        if norm.kind != "rms" or norm.bias is not None:
            continue
        if len(norm.weight) == dim and x.dim() == 4:
            entering.append((seen.norm, False, normed(before, norm)))
        elif len(norm.weight) == heads * dim and same(x, flat):
            entering.append((seen.norm, True, _by_head(normed(flat, norm), heads)))
    changes = []
    for rotary in (None, *rotaries):
        for norm_of, across, x in entering:
            if rotary is not None:
                if 2 * rotary.cosines.shape[-1] > dim:
                    continue
                x = rotate(x, rotary, positions)
            factor = rounded_factor(factor_of(x, after))
            if same(x * factor, after):
                error = distance(x * factor, after) / (float(after.float().norm()) or 1.0)
                changes.append(_Change(norm_of, across, rotary, factor, error))
    return changes
