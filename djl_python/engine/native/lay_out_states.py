"""Lays out mixers with a recurrent state of fixed size instead of a KV cache. Runs in the engine process, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .delta_rule import EPS
from .layout import STORE, STORE_FP32, Layout, Rows
from .pool import ACTIVATIONS, NORMS, Kind
from .recipe_mixers import Convolution, DeltaNet, GatedNorm, SelectiveStateSpace, ShortConvolution, Stateful, StateSpace
from .recipe_parts import Norm, Stacked


@dataclass
class StatePlaces:
    """Addresses of the layers' states in the first slot.

    Args:
        next: address for the next layer.
    """

    next: int

    def take(self, state_bytes: int) -> int:
        begin = self.next
        self.next += state_bytes
        return begin


def lay_out_stateful(layout: Layout, mixer: Stateful, given: Rows, states: StatePlaces, *, last: bool) -> Rows:
    """Lay out a mixer without its output projection; returns the rows that `mixer.output` reads.

    Args:
        last: once states are updated, go on with only the rows whose logits are wanted.
    """
    if isinstance(mixer, DeltaNet):
        mixed = _delta_net(layout, mixer, given, states)
    elif isinstance(mixer, StateSpace):
        mixed = _state_space(layout, mixer, given, states)
    elif isinstance(mixer, SelectiveStateSpace):
        mixed = _selective_space(layout, mixer, given, states)
    else:
        mixed = _short_convolution(layout, mixer, given, states)
    if last:
        (at,) = layout.begin_late(("mixed", mixed.stride, layout.dtype, mixed.at))
        return Rows(at, mixed.stride)
    return mixed


def _delta_net(layout: Layout, net: DeltaNet, given: Rows, states: StatePlaces) -> Rows:
    item = layout.dtype.itemsize
    channels, inner = net.convolution.channels, net.heads * net.value_dim
    rates = _project_exactly(layout, given, "rates", net.rates)
    projected = layout.project("projected", net.projection, given)
    convolved = _convolve(layout, net.convolution, projected, channels + inner, states)
    decay = layout.buffer("decay", 2 * net.heads, torch.float32)
    layout.add(
        Kind.DECAY, heads=net.heads, stride=2 * net.heads, scale=net.max_beta, in_=rates,
        keys=rates + net.heads * item, weight=layout.keep(net.decay), bias=layout.keep(net.decay_bias), out=decay,
    )  # fmt: skip
    answers = layout.buffer("answers", inner, layout.dtype)
    of_keys = net.key_heads * net.key_dim * item
    layout.add(
        Kind.DELTA, heads=net.heads, kv_heads=net.key_heads, dim=net.key_dim, value_dim=net.value_dim, mode=1,
        eps=EPS, scale=net.key_dim**-0.5, stride=channels, n=channels, k=2 * net.heads, in_=convolved,
        keys=convolved + of_keys, values=convolved + 2 * of_keys, bias=decay, weight2=decay + 4 * net.heads,
        routed=states.take(net.matrix_bytes), out=answers,
    )  # fmt: skip
    return _gated(layout, net.norm, answers, inner, projected + channels * item, channels + inner)


def _state_space(layout: Layout, space: StateSpace, given: Rows, states: StatePlaces) -> Rows:
    item = layout.dtype.itemsize
    channels, inner = space.convolution.channels, space.heads * space.dim
    rates = _project_exactly(layout, given, "rates", space.steps)
    projected = layout.project("projected", space.projection, given)
    convolved = _convolve(layout, space.convolution, projected, channels + inner, states)
    steps = layout.buffer("steps", space.heads, torch.float32)
    layout.add(
        Kind.STEP_SIZES, heads=space.heads, stride=space.heads, in_=rates, bias=layout.keep(space.step_bias),
        eps=space.least_step, softcap=space.most_step, out=steps,
    )  # fmt: skip
    answers = layout.buffer("answers", inner, layout.dtype)
    layout.add(
        Kind.SCAN, heads=space.heads, kv_heads=space.groups, dim=space.dim, value_dim=space.size, mode=1,
        stride=channels, n=channels, in_=convolved, keys=convolved + inner * item,
        values=convolved + (inner + space.groups * space.size) * item, bias=steps, weight2=layout.keep(space.decay),
        weight3=None if space.skipped is None else layout.keep(space.skipped),
        routed=states.take(space.matrix_bytes), out=answers,
    )  # fmt: skip
    return _gated(layout, space.norm, answers, inner, projected + channels * item, channels + inner)


def _selective_space(layout: Layout, space: SelectiveStateSpace, given: Rows, states: StatePlaces) -> Rows:
    item = layout.dtype.itemsize
    channels, size = space.convolution.channels, space.size
    projected = layout.project("projected", space.projection, given)
    convolved = _convolve(layout, space.convolution, projected, 2 * channels, states)
    rows = Rows(convolved, channels)
    of_steps = _project_exactly(layout, rows, "narrow", space.narrow, space.narrow_norm, 1)
    shared = _project_exactly(layout, rows, "shared", space.shared, space.shared_norm, 2)
    steps = layout.buffer("steps", channels, torch.float32)
    narrow = layout.pack_exactly(space.steps)
    layout.add_linear(narrow, Rows(of_steps, narrow.k), steps, mode=STORE_FP32, scale=1.0)
    answers = layout.buffer("answers", channels, layout.dtype)
    layout.add(
        Kind.SELECTIVE_SCAN, dim=channels, value_dim=size, n=2 * size, in_=convolved, bias=steps, keys=shared,
        values=shared + size * item, weight=layout.keep(space.decay),
        weight2=None if space.step_bias is None else layout.keep(space.step_bias),
        weight3=None if space.skipped is None else layout.keep(space.skipped),
        routed=states.take(space.matrix_bytes), out=answers,
    )  # fmt: skip
    return _gated(layout, None, answers, channels, projected + channels * item, 2 * channels)


def _short_convolution(layout: Layout, mixer: ShortConvolution, given: Rows, states: StatePlaces) -> Rows:
    channels = mixer.convolution.channels
    row = channels * layout.dtype.itemsize
    projected = layout.project("projected", mixer.projection, given)
    factors = {"keys": projected + row, "values": projected + 2 * row}
    return Rows(_convolve(layout, mixer.convolution, projected, 3 * channels, states, **factors), channels)


def _project_exactly(
    layout: Layout, given: Rows, what: str, stacked: Stacked, norm: Norm | None = None, parts: int = 1
) -> int:
    """Address of an unquantized product that controls how a state forgets: rounding would add up over its tokens.

    Args:
        norm: applied to each of the result's `parts` equal parts.
    """
    packed = layout.pack_exactly(stacked.joined())
    made = layout.buffer(what, packed.n, layout.dtype)
    layout.add_linear(packed, given, made, mode=STORE, scale=1.0)
    if norm is not None:
        layout.add_norm_of_rows(norm, made, packed.n, parts)
    return made


def _convolve(
    layout: Layout, convolution: Convolution, given: int, stride: int, states: StatePlaces, **factors: int
) -> int:
    convolved = layout.buffer("convolved", convolution.channels, layout.dtype)
    layout.add(
        Kind.CONVOLVE_ROWS, n=convolution.channels, dim=len(convolution.taps), stride=stride, in_=given, out=convolved,
        activation=ACTIVATIONS[convolution.activation], weight=layout.keep(convolution.taps),
        bias=None if convolution.bias is None else layout.keep(convolution.bias),
        routed=states.take(convolution.state_bytes(layout.dtype)), **factors,
    )  # fmt: skip
    return convolved


def _gated(layout: Layout, gated: GatedNorm | None, given: int, columns: int, gate: int, stride: int) -> Rows:
    """Apply a norm, if there is one, and multiply by silu of the gate; returns the rows."""
    mixed = layout.rows("mixed", columns)
    how: dict[str, Any] = {"k": columns, "norm": NORMS[None], "weight": layout.keep(torch.ones(columns))}
    if gated is not None:
        norm = gated.norm
        weight = layout.keep(norm.weight.repeat(columns // len(norm.weight)))
        how = {"k": gated.width, "norm": NORMS[norm.kind], "weight": weight, "eps": norm.eps}
        how["mode"] = int(gated.gate_first)
    layout.add(Kind.NORM_ROWS, n=columns, in_=given, keys=gate, stride=stride, out=mixed.at, pitch=mixed.stride, **how)
    return mixed
