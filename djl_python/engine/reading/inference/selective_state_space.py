"""Explains a selective state space, the first Mamba's. Runs in the engine process, at load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from ...checkpoints.linears import Linear
from ..comparison import same
from ..recipe.limits import MAX_STATE_SIZE
from ..recipe.mixers import SelectiveStateSpace
from ..recipe.primitives import Norm, NotUnderstoodError, Stacked
from ..watching.functions import FunctionCall
from .columns import columns_of, read_convolution
from .layer_record import LayerRecord, Projections
from .norms import NormCall, normed

#: Greatest state, in numbers for each channel: kMaxState of scan.h.
MAX_STATE: Final = 256
_EPSILONS: Final = (1e-6, 1e-5)


def read_selective_state_space(
    record: LayerRecord, conv_call: FunctionCall, scan_call: FunctionCall
) -> tuple[SelectiveStateSpace, Projections]:
    """The layer's mixer, and its linears.

    Raises:
        NotUnderstoodError: it is something else.
    """
    given = scan_call.arguments
    channels, size = given["hidden_states"].shape[1], given["B"].shape[1]
    if size > MAX_STATE_SIZE or not given.get("delta_softplus") or given.get("z") is None:
        raise NotUnderstoodError("a selective state space that is large, has no softplus, or no gate")
    if not torch.equal(given["hidden_states"], conv_call.result):
        raise NotUnderstoodError("a selective state space of something else than what is convolved")
    mixed = scan_call.result[0].T
    linears = record.projections(lambda x, _: torch.equal(x.reshape(-1), mixed.to(x.dtype).reshape(-1)), inner=True)
    if len(linears.inner) != 1 or not torch.equal(linears.inner[0][0].x[0], conv_call.result[0].T):
        raise NotUnderstoodError("steps, B and C of a selective state space are not one linear of what is convolved")
    ((call, inner),) = linears.inner
    made = call.result[0]
    rank = made.shape[1] - 2 * size
    narrow, *shared = made.split([rank, size, size], -1)
    of_shared = [_norm_between(part, given[name][0].T, record.norms) for part, name in zip(shared, "BC", strict=True)]
    narrow_norm, steps = _steps(record, narrow, given["dt"][0].T)
    through = columns_of(conv_call.arguments["hidden_states"][0].T, linears.outputs)
    gates = columns_of(given["z"][0].T, linears.outputs)
    bias, skipped = given.get("delta_bias"), given.get("D")
    places = torch.arange(made.shape[1])
    space = SelectiveStateSpace(
        size=size,
        projection=Stacked(linears.linears, torch.cat([through, gates])),
        convolution=read_convolution(record, conv_call, torch.arange(channels)),
        narrow=Stacked([inner], places[:rank]),
        narrow_norm=narrow_norm,
        shared=Stacked([inner], places[rank:]),
        shared_norm=_side_by_side(*of_shared),
        steps=steps,
        decay=record.own_numbers(given["A"]).T.contiguous(),
        step_bias=None if bias is None else record.own_numbers(bias).contiguous(),
        skipped=None if skipped is None else record.own_numbers(skipped).contiguous(),
        output=linears.output,
    )
    return space, linears


def _steps(record: LayerRecord, narrow: Tensor, dt: Tensor) -> tuple[Norm | None, Linear]:
    """(the norm that `narrow` goes through, if any, the linear that then makes dt (tokens, channels))"""
    weights = [pair for pair in record.parameters() if pair[0].shape == (dt.shape[1], narrow.shape[1])]
    for norm, made in ((None, narrow), *_normed(narrow, record.norms)):
        for copied, own in weights:
            if same(made @ copied.T, dt):
                return norm, Linear(own, None)
    raise NotUnderstoodError("steps of a selective state space that are not a product")


def _norm_between(before: Tensor, after: Tensor, norms: list[NormCall]) -> Norm | None:
    """The norm that makes `after` from `before`, (tokens, columns) both; None if they are the same."""
    if torch.equal(before, after):
        return None
    for norm, made in _normed(before, norms):
        if same(made, after):
            return norm
    raise NotUnderstoodError("B or C of a selective state space is changed in an unknown way")


def _normed(x: Tensor, norms: list[NormCall]) -> Iterator[tuple[Norm, Tensor]]:
    """(norm, its result) of x, for recorded norms that fit x, and for those without weights, which are no modules."""
    width = x.shape[1]
    for seen in norms:
        if seen.kind == "rms" and seen.norm.bias is None and len(seen.norm.weight) == width:
            yield seen.norm, normed(x, seen.copied)
    for eps in _EPSILONS:
        plain = Norm("rms", torch.ones(width), None, eps)
        yield plain, normed(x, plain)


def _side_by_side(one: Norm | None, other: Norm | None) -> Norm | None:
    """The norms of two parts side by side, as one."""
    if one is None and other is None:
        return None
    if one is None or other is None or one.eps != other.eps:
        raise NotUnderstoodError("B and C of a selective state space go through different norms")
    return Norm("rms", torch.cat([one.weight, other.weight]), None, one.eps)
