"""Explains a layer's latent attention: keys and values that come from a latent. Runs in the engine process, at load."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...checkpoints.linears import Linear
from ..comparison import distance, same
from ..recipe.mixers import LatentAttention
from ..recipe.primitives import Norm, NotUnderstoodError, Rotary, Stacked
from ..watching.attention import AttentionCall
from ..watching.run import ModuleCall
from .columns import columns_if_any, columns_of, other_columns
from .layer_record import LayerRecord, Projections
from .rotary import rotate

#: A call of a linear, and the linear.
LinearCall = tuple[ModuleCall, Linear]


def expansion_of(record: LayerRecord) -> LinearCall | None:
    """The linear that makes the values from something else than the input projections read, if there is one."""
    (call,) = record.attention_calls
    given, values = record.linears[0][0].x, _columns(call.value)
    for module_call, linear in record.linears[1:]:
        made = _rows(module_call.result)
        if torch.equal(module_call.x, given) or not (made == values[:, :1]).all(0).any():  # rules out most linears
            continue
        if (columns_if_any(values, made) >= 0).all():
            return module_call, linear
    return None


def read_latent_attention(
    record: LayerRecord, expanding: LinearCall, rotaries: Sequence[Rotary], positions: slice
) -> tuple[LatentAttention, Projections]:
    """The layer's only attention, whose values `expanding` made, and its linears.

    Raises:
        NotUnderstoodError: it could not be explained.
    """
    (call,) = record.attention_calls
    result = call.result.reshape(1, call.result.shape[1], -1)
    linears = record.projections(
        lambda x, _: x.shape == result.shape and torch.equal(x, result.to(x.dtype)), inner=True
    )
    module_call, expansion = expanding
    if expansion.bias is not None:
        raise NotUnderstoodError("a bias where keys and values are made of a latent")
    latent, norm = _normed_columns(record, module_call.x, linears.outputs)
    decoupled = _decoupled(latent, linears)
    heads = _read_heads(call, module_call)
    others = [each for each in linears.inner if each[0] is not module_call]
    queries = _read_queries(record, call, linears, others, heads, torch.cat([latent, decoupled]))
    order, rotary = _rotation(
        call, heads.others, linears.outputs[:, decoupled], queries.made[:, queries.rotated], rotaries, positions
    )
    attention = LatentAttention(
        heads=call.query.shape[1],
        rotated=len(decoupled),
        scale=call.scale,
        softcap=call.softcap,
        window=call.window,
        sinks=None if call.sinks is None else record.own_numbers(call.sinks),
        slopes=call.slopes,
        projection=Stacked(linears.linears, torch.cat([latent, decoupled[order]])),
        norm=norm,
        query_latent=queries.latent,
        query_norm=queries.norm,
        queries=Stacked(queries.parts, torch.cat([queries.plain, queries.rotated[:, order].flatten()])),
        expansion=expansion,
        key_rows=heads.key_rows,
        value_rows=heads.value_rows,
        rotary=rotary,
        output=linears.output,
    )
    return attention, linears


def _rows(x: Tensor) -> Tensor:
    """x as (tokens, columns); its other dimensions are of size 1."""
    return x.reshape(-1, x.shape[-1])


def _columns(heads: Tensor) -> Tensor:
    """(1, heads, tokens, dim) -> (tokens, heads * dim)"""
    return heads[0].transpose(0, 1).flatten(1)


def _normed_columns(record: LayerRecord, x: Tensor, made: Tensor) -> tuple[Tensor, Norm]:
    """The columns of `made` that a norm read to make x, and the norm."""
    norm_call = record.norm_into(_rows(x)[None])
    if norm_call is None or norm_call.kind != "rms" or norm_call.norm.bias is not None:
        raise NotUnderstoodError("a latent without a norm, or with another")
    return columns_of(_rows(norm_call.call.x), made), norm_call.norm


def _decoupled(latent: Tensor, linears: Projections) -> Tensor:
    """The other columns of the linear that makes the latent."""
    ends = itertools.accumulate(len(linear.weight) for linear in linears.linears)
    for linear, end in zip(linears.linears, ends, strict=True):
        columns = torch.arange(end - len(linear.weight), end)
        if torch.isin(latent, columns).all():
            return columns[~torch.isin(columns, latent)]
    raise NotUnderstoodError("a latent that more than one linear makes")


@dataclass(frozen=True)
class _Heads:
    """Which parts of each head come from the latent.

    Args:
        dims: the dimensions of a key that come from the latent; the `others` are equal in all heads.
        key_rows: (heads, dims) rows of the expanding linear that make keys.
        value_rows: (heads, value dims) rows that make values.
    """

    dims: Tensor
    others: Tensor
    key_rows: Tensor
    value_rows: Tensor


def _read_heads(call: AttentionCall, expanding: ModuleCall) -> _Heads:
    count = call.key.shape[1]
    made = _rows(expanding.result)
    key_rows = columns_if_any(_columns(call.key), made).view(count, -1)
    expanded = key_rows >= 0
    dims, others = (each.nonzero().flatten() for each in (expanded.all(0), (~expanded).all(0)))
    if len(dims) + len(others) != key_rows.shape[1] or call.query.shape[1] != count:
        raise NotUnderstoodError("heads of different kinds")
    value_rows = columns_of(_columns(call.value), made).view(count, -1)
    return _Heads(dims, others, key_rows[:, dims], value_rows)


@dataclass(frozen=True)
class _Queries:
    """How queries are made.

    Args:
        latent, norm: of the latent that queries come from, if they don't come from the layer's input.
        parts, made: the linears that make queries, and their result, (tokens, columns).
        plain: the columns of queries that are multiplied with the latent, head by head.
        rotated: (heads, dims) the other columns, which are rotated.
    """

    latent: Stacked | None
    norm: Norm | None
    parts: list[Linear]
    made: Tensor
    plain: Tensor
    rotated: Tensor


def _read_queries(
    record: LayerRecord,
    call: AttentionCall,
    linears: Projections,
    others: list[LinearCall],
    heads: _Heads,
    taken: Tensor,
) -> _Queries:
    """Read queries from the input projections, except their `taken` columns, or from a linear of a query latent."""
    latent, norm, parts, made = None, None, linears.linears, linears.outputs
    if len(others) > 1:
        raise NotUnderstoodError("queries come of more than one linear")
    if others:
        ((module_call, linear),) = others
        columns, norm = _normed_columns(record, module_call.x, made)
        latent, parts, made, taken = Stacked(parts, columns), [linear], _rows(module_call.result), taken[:0]
    plain = columns_of(_columns(call.query[..., heads.dims]), made)
    rotated = other_columns(torch.cat([plain, taken]), made.shape[1])
    count = call.query.shape[1]
    if len(rotated) != count * len(heads.others):
        raise NotUnderstoodError("queries are more than what meets the latent and what is rotated")
    return _Queries(latent, norm, parts, made, plain, rotated.view(count, -1))


def _rotation(
    call: AttentionCall, dims: Tensor, key: Tensor, queries: Tensor, rotaries: Sequence[Rotary], positions: slice
) -> tuple[Tensor, Rotary | None]:
    """(order of these dimensions of keys and queries before their rotation, the rotation if there is one)

    Args:
        key: (tokens, dims) before rotation.
        queries: (tokens, heads, dims) before rotation.
    """
    natural = torch.arange(len(dims))
    after_key, after_queries = call.key[0][..., dims], call.query[0][..., dims]
    candidates: list[tuple[float, Tensor, Rotary | None]] = []
    for order in (natural, torch.cat([natural[0::2], natural[1::2]])):
        before_key = key[:, order].float().expand_as(after_key)
        before_queries = queries[..., order].float().transpose(0, 1)
        for rotary in (None, *rotaries):
            if rotary is None:
                made = before_key, before_queries
            elif 2 * rotary.cosines.shape[-1] <= len(dims):
                made = rotate(before_key, rotary, positions), rotate(before_queries, rotary, positions)
            else:
                continue
            if same(made[0], after_key) and same(made[1], after_queries):
                candidates.append((distance(made[0], after_key) + distance(made[1], after_queries), order, rotary))
    if not candidates:
        raise NotUnderstoodError("queries or keys are changed in an unknown way after their projection")
    _, order, rotary = min(candidates, key=lambda each: each[0])
    return order, rotary
