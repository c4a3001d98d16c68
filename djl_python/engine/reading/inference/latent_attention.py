"""Reads one layer's latent attention, whose keys and values come from a latent. Runs in the engine process, once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..comparison import distance, same
from ..recipe.mixers import LatentAttention
from ..recipe.primitives import Linear, Norm, NotUnderstoodError, Rotary, Stacked
from ..watching.attention import Call
from ..watching.run import Event
from .attention import rotate
from .columns import columns_if_any, columns_of, other_columns
from .layer_record import LayerReader, Projected

#: A linear and its call.
Done = tuple[Event, Linear]


def expansion_of(reader: LayerReader) -> Done | None:
    """The linear that makes the values from something else than the input projections read, if there is one."""
    (call,) = reader.calls
    given, values = reader.linears[0][0].x, _columns(call.value)
    for event, linear in reader.linears[1:]:
        made = _rows(event.result)
        if torch.equal(event.x, given) or not (made == values[:, :1]).all(0).any():  # rules out most linears
            continue
        if (columns_if_any(values, made) >= 0).all():
            return event, linear
    return None


def read_latents(
    reader: LayerReader, expanding: Done, turns: Sequence[Rotary], places: slice
) -> tuple[LatentAttention, Projected]:
    """The layer's only attention, whose values `expanding` made, and its linears.

    Raises:
        NotUnderstoodError: it could not be explained.
    """
    (call,) = reader.calls
    result = call.result.reshape(1, call.result.shape[1], -1)
    linears = reader.projected(lambda x, _: x.shape == result.shape and torch.equal(x, result.to(x.dtype)), inner=True)
    event, expansion = expanding
    if expansion.bias is not None:
        raise NotUnderstoodError("a bias where keys and values are made of a latent")
    latent, norm = _normed_columns(reader, event.x, linears.made)
    beside = _beside(latent, linears)
    heads = _read_heads(call, event)
    others = [done for done in linears.within if done[0] is not event]
    asked = _read_queries(reader, call, linears, others, heads, torch.cat([latent, beside]))
    order, turn = _turn(call, heads.others, linears.made[:, beside], asked.made[:, asked.turned], turns, places)
    attention = LatentAttention(
        heads=call.query.shape[1],
        turned=len(beside),
        scale=call.scale,
        softcap=call.softcap,
        window=call.window,
        sinks=None if call.sinks is None else reader.own(call.sinks),
        slopes=call.slopes,
        projection=Stacked(linears.linears, torch.cat([latent, beside[order]])),
        norm=norm,
        query_latent=asked.latent,
        query_norm=asked.norm,
        queries=Stacked(asked.parts, torch.cat([asked.met, asked.turned[:, order].flatten()])),
        expansion=expansion,
        key_rows=heads.key_rows,
        value_rows=heads.value_rows,
        rotary=turn,
        output=linears.output,
    )
    return attention, linears


def _rows(x: Tensor) -> Tensor:
    """x as (tokens, columns); its other dimensions are of size 1."""
    return x.reshape(-1, x.shape[-1])


def _columns(heads: Tensor) -> Tensor:
    """(1, heads, tokens, dim) -> (tokens, heads * dim)"""
    return heads[0].transpose(0, 1).flatten(1)


def _normed_columns(reader: LayerReader, x: Tensor, made: Tensor) -> tuple[Tensor, Norm]:
    """The columns of `made` that a norm read to make x, and the norm."""
    found = reader.norm_into(_rows(x)[None])
    if found is None or found.kind != "rms" or found.norm.bias is not None:
        raise NotUnderstoodError("a latent without a norm, or with another")
    return columns_of(_rows(found.event.x), made), found.norm


def _beside(latent: Tensor, linears: Projected) -> Tensor:
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
        dims: a key's dimensions that do; the `others` are the same for all heads.
        key_rows: (heads, dims) rows of the expanding linear that make keys.
        value_rows: (heads, value dims) rows that make values.
    """

    dims: Tensor
    others: Tensor
    key_rows: Tensor
    value_rows: Tensor


def _read_heads(call: Call, expanding: Event) -> _Heads:
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
        met: the columns of queries that are multiplied with the latent, head by head.
        turned: (heads, dims) the other columns, which are rotated.
    """

    latent: Stacked | None
    norm: Norm | None
    parts: list[Linear]
    made: Tensor
    met: Tensor
    turned: Tensor


def _read_queries(
    reader: LayerReader, call: Call, linears: Projected, others: list[Done], heads: _Heads, taken: Tensor
) -> _Queries:
    """Read queries from the input projections, except their `taken` columns, or from a linear of a query latent."""
    latent, norm, parts, made = None, None, linears.linears, linears.made
    if len(others) > 1:
        raise NotUnderstoodError("queries come of more than one linear")
    if others:
        ((event, linear),) = others
        columns, norm = _normed_columns(reader, event.x, made)
        latent, parts, made, taken = Stacked(parts, columns), [linear], _rows(event.result), taken[:0]
    met = columns_of(_columns(call.query[..., heads.dims]), made)
    turned = other_columns(torch.cat([met, taken]), made.shape[1])
    count = call.query.shape[1]
    if len(turned) != count * len(heads.others):
        raise NotUnderstoodError("queries are more than what meets the latent and what is turned")
    return _Queries(latent, norm, parts, made, met, turned.view(count, -1))


def _turn(
    call: Call, dims: Tensor, key: Tensor, queries: Tensor, turns: Sequence[Rotary], places: slice
) -> tuple[Tensor, Rotary | None]:
    """(order of these dimensions of keys and queries before their rotation, the rotation if there is one)

    Args:
        key: (tokens, dims) before rotation.
        queries: (tokens, heads, dims) before rotation.
    """
    natural = torch.arange(len(dims))
    after_key, after_queries = call.key[0][..., dims], call.query[0][..., dims]
    found: list[tuple[float, Tensor, Rotary | None]] = []
    for order in (natural, torch.cat([natural[0::2], natural[1::2]])):
        before_key = key[:, order].float().expand_as(after_key)
        before_queries = queries[..., order].float().transpose(0, 1)
        for turn in (None, *turns):
            if turn is None:
                made = before_key, before_queries
            elif 2 * turn.cosines.shape[-1] <= len(dims):
                made = rotate(before_key, turn, places), rotate(before_queries, turn, places)
            else:
                continue
            if same(made[0], after_key) and same(made[1], after_queries):
                found.append((distance(made[0], after_key) + distance(made[1], after_queries), order, turn))
    if not found:
        raise NotUnderstoodError("queries or keys are changed in an unknown way after their projection")
    _, order, turn = min(found, key=lambda each: each[0])
    return order, turn
