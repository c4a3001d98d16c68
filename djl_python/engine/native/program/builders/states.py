"""Lays out mixers with a recurrent state of fixed size instead of a KV cache. Runs in the engine process, once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ....reading.recipe_mixers import (
    Convolution,
    DeltaNet,
    GatedNorm,
    SelectiveStateSpace,
    ShortConvolution,
    Stateful,
    StateSpace,
)
from ....reading.recipe_parts import Norm, Stacked
from ...modules.delta_rule import EPS
from ...thread_pool import Mode
from ..operations import Into, norm_rows
from ..operations_states import convolve_rows, decay, delta, scan, selective_scan, step_sizes
from .builder import Layout, Rows


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
    g = layout.buffer("decay", 2 * net.heads, torch.float32)
    layout.add(
        decay(
            heads=net.heads, in_=rates, input_rates=rates + net.heads * item, stride=2 * net.heads,
            decay=layout.keep(net.decay), bias=layout.keep(net.decay_bias), max_beta=net.max_beta, out=g,
        )
    )  # fmt: skip
    answers = layout.buffer("answers", inner, layout.dtype)
    of_keys = net.key_heads * net.key_dim * item
    layout.add(
        delta(
            heads=net.heads, key_heads=net.key_heads, dim=net.key_dim, value_dim=net.value_dim, in_=convolved,
            keys=convolved + of_keys, stride=channels, values=convolved + 2 * of_keys, value_stride=channels, g=g,
            beta=g + 4 * net.heads, rate_stride=2 * net.heads, scale=net.key_dim**-0.5, unit=True, eps=EPS,
            out=answers, states=states.take(net.matrix_bytes),
        )
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
        step_sizes(
            heads=space.heads, in_=rates, stride=space.heads, bias=layout.keep(space.step_bias),
            least_step=space.least_step, greatest_step=space.most_step, out=steps,
        )
    )  # fmt: skip
    answers = layout.buffer("answers", inner, layout.dtype)
    layout.add(
        scan(
            heads=space.heads, dim=space.dim, head_groups=space.groups, state_size=space.size, in_=convolved,
            stride=channels, B=convolved + inner * item, C=convolved + (inner + space.groups * space.size) * item,
            shared_stride=channels, dt=steps, head_A=layout.keep(space.decay),
            D=None if space.skipped is None else layout.keep(space.skipped), out=answers, rounded=True,
            states=states.take(space.matrix_bytes),
        )
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
    layout.add_linear(narrow, Rows(of_steps, narrow.k), Into(steps, Mode.STORE_FP32))
    answers = layout.buffer("answers", channels, layout.dtype)
    layout.add(
        selective_scan(
            channels=channels, state_size=size, in_=convolved, B=shared, C=shared + size * item,
            shared_stride=2 * size, dt=steps,
            dt_bias=None if space.step_bias is None else layout.keep(space.step_bias), A=layout.keep(space.decay),
            D=None if space.skipped is None else layout.keep(space.skipped), out=answers,
            states=states.take(space.matrix_bytes),
        )
    )  # fmt: skip
    return _gated(layout, None, answers, channels, projected + channels * item, 2 * channels)


def _short_convolution(layout: Layout, mixer: ShortConvolution, given: Rows, states: StatePlaces) -> Rows:
    channels = mixer.convolution.channels
    row = channels * layout.dtype.itemsize
    projected = layout.project("projected", mixer.projection, given)
    factors = projected + row, projected + 2 * row
    return Rows(_convolve(layout, mixer.convolution, projected, 3 * channels, states, factors), channels)


def _project_exactly(
    layout: Layout, given: Rows, what: str, stacked: Stacked, norm: Norm | None = None, parts: int = 1
) -> int:
    """Address of an unquantized product that controls how a state forgets: rounding would add up over its tokens.

    Args:
        norm: applied to each of the result's `parts` equal parts.
    """
    packed = layout.pack_exactly(stacked.joined())
    made = layout.buffer(what, packed.n, layout.dtype)
    layout.add_linear(packed, given, Into(made))
    if norm is not None:
        layout.add_norm_of_rows(norm, made, packed.n, parts)
    return made


def _convolve(
    layout: Layout,
    convolution: Convolution,
    given: int,
    stride: int,
    states: StatePlaces,
    factors: tuple[int | None, int | None] = (None, None),
) -> int:
    """Add a convolution; returns its result's address. `factors` are of its input and of its result."""
    convolved = layout.buffer("convolved", convolution.channels, layout.dtype)
    layout.add(
        convolve_rows(
            n=convolution.channels, taps=len(convolution.taps), weight=layout.keep(convolution.taps),
            bias=None if convolution.bias is None else layout.keep(convolution.bias),
            activation=convolution.activation, in_=given, stride=stride, in_factors=factors[0],
            out_factors=factors[1], out=convolved, states=states.take(convolution.state_bytes(layout.dtype)),
        )
    )  # fmt: skip
    return convolved


def _gated(layout: Layout, gated: GatedNorm | None, given: int, columns: int, gate: int, stride: int) -> Rows:
    """Apply a norm, if there is one, and multiply by silu of the gate; returns the rows."""
    mixed = layout.rows("mixed", columns)
    norm: str | None = None
    eps, part, gate_first, weight = 0.0, columns, False, torch.ones(columns)
    if gated is not None:
        norm, eps, part, gate_first = gated.norm.kind, gated.norm.eps, gated.width, gated.gate_first
        weight = gated.norm.weight.repeat(columns // len(gated.norm.weight))
    layout.add(
        norm_rows(
            n=columns, part=part, norm=norm, eps=eps, weight=layout.keep(weight), in_=given, out=mixed.at,
            pitch=mixed.stride, gate=gate, gate_stride=stride, gate_first=gate_first,
        )
    )  # fmt: skip
    return mixed
