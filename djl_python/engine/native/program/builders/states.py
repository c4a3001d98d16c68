"""Builds mixers with a recurrent state of fixed size instead of a KV cache. Runs in the engine process, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from ....reading.recipe.mixers import (
    Convolution,
    DeltaNet,
    GatedNorm,
    RecurrentMixer,
    SelectiveStateSpace,
    ShortConvolution,
    StateSpace,
)
from ....reading.recipe.primitives import Norm, Stacked
from ...abi.decoder import GroupNormOp
from ...abi.enums import Activation, Mode, NormKind
from ...abi.parts import Output
from ...abi.recurrent import (
    CausalConvSpansOp,
    DeltaRatesOp,
    DeltaRuleOp,
    Mamba1ScanOp,
    Mamba2ScanOp,
    StepSizesOp,
)
from .builder import ProgramBuilder, Rows

#: The epsilon of the L2 norm inside transformers' functions for the delta rule.
EPS: Final = 1e-6


@dataclass
class StateLayout:
    """Addresses of the layers' states in the first slot.

    Args:
        next: address for the next layer.
    """

    next: int

    def take(self, state_bytes: int) -> int:
        begin = self.next
        self.next += state_bytes
        return begin


def build_stateful(
    builder: ProgramBuilder, mixer: RecurrentMixer, given: Rows, states: StateLayout, *, last: bool
) -> Rows:
    """Build a mixer without its output projection; returns the rows that `mixer.output` reads.

    Args:
        last: once states are updated, go on with only the rows whose logits are wanted.
    """
    if isinstance(mixer, DeltaNet):
        mixed = _delta_net(builder, mixer, given, states)
    elif isinstance(mixer, StateSpace):
        mixed = _state_space(builder, mixer, given, states)
    elif isinstance(mixer, SelectiveStateSpace):
        mixed = _selective_space(builder, mixer, given, states)
    else:
        mixed = _short_convolution(builder, mixer, given, states)
    if last:
        (at,) = builder.begin_late(("mixed", mixed.stride, builder.dtype, mixed.at))
        return Rows(at, mixed.stride)
    return mixed


def _delta_net(builder: ProgramBuilder, net: DeltaNet, given: Rows, states: StateLayout) -> Rows:
    item = builder.dtype.itemsize
    channels, inner = net.convolution.channels, net.heads * net.value_dim
    rates = _project_exactly(builder, given, "rates", net.rates)
    projected = builder.project("projected", net.projection, given)
    convolved = _convolve(builder, net.convolution, projected, channels + inner, states)
    g = builder.buffer("decay", 2 * net.heads, torch.float32)
    builder.add(
        DeltaRatesOp(
            heads=net.heads, in_=rates, input_rates=rates + net.heads * item, stride=2 * net.heads,
            decay=builder.keep(net.decay), bias=builder.keep(net.decay_bias), max_beta=net.max_beta, out=g,
        )
    )  # fmt: skip
    answers = builder.buffer("answers", inner, builder.dtype)
    of_keys = net.key_heads * net.key_dim * item
    builder.add(
        DeltaRuleOp(
            heads=net.heads, key_heads=net.key_heads, dim=net.key_dim, value_dim=net.value_dim, in_=convolved,
            keys=convolved + of_keys, stride=channels, values=convolved + 2 * of_keys, value_stride=channels, g=g,
            beta=g + 4 * net.heads, rate_stride=2 * net.heads, scale=net.key_dim**-0.5, unit=True, eps=EPS,
            out=answers, states=states.take(net.matrix_bytes),
        )
    )  # fmt: skip
    return _gated(builder, net.norm, answers, inner, projected + channels * item, channels + inner)


def _state_space(builder: ProgramBuilder, space: StateSpace, given: Rows, states: StateLayout) -> Rows:
    item = builder.dtype.itemsize
    channels, inner = space.convolution.channels, space.heads * space.dim
    rates = _project_exactly(builder, given, "rates", space.steps)
    projected = builder.project("projected", space.projection, given)
    convolved = _convolve(builder, space.convolution, projected, channels + inner, states)
    steps = builder.buffer("steps", space.heads, torch.float32)
    builder.add(
        StepSizesOp(
            heads=space.heads, in_=rates, stride=space.heads, bias=builder.keep(space.step_bias),
            least_step=space.least_step, greatest_step=space.most_step, out=steps,
        )
    )  # fmt: skip
    answers = builder.buffer("answers", inner, builder.dtype)
    builder.add(
        Mamba2ScanOp(
            heads=space.heads, dim=space.dim, head_groups=space.groups, state_size=space.size, in_=convolved,
            stride=channels, B=convolved + inner * item, C=convolved + (inner + space.groups * space.size) * item,
            shared_stride=channels, dt=steps, A=builder.keep(space.decay),
            D=None if space.skipped is None else builder.keep(space.skipped), out=answers, rounded=True,
            states=states.take(space.matrix_bytes),
        )
    )  # fmt: skip
    return _gated(builder, space.norm, answers, inner, projected + channels * item, channels + inner)


def _selective_space(builder: ProgramBuilder, space: SelectiveStateSpace, given: Rows, states: StateLayout) -> Rows:
    item = builder.dtype.itemsize
    channels, size = space.convolution.channels, space.size
    projected = builder.project("projected", space.projection, given)
    convolved = _convolve(builder, space.convolution, projected, 2 * channels, states)
    rows = Rows(convolved, channels)
    of_steps = _project_exactly(builder, rows, "narrow", space.narrow, space.narrow_norm, 1)
    shared = _project_exactly(builder, rows, "shared", space.shared, space.shared_norm, 2)
    steps = builder.buffer("steps", channels, torch.float32)
    narrow = builder.pack_exactly(space.steps)
    builder.add_linear(narrow, Rows(of_steps, narrow.k), Output(out=steps, mode=Mode.STORE_FP32))
    answers = builder.buffer("answers", channels, builder.dtype)
    builder.add(
        Mamba1ScanOp(
            channels=channels, state_size=size, in_=convolved, B=shared, C=shared + size * item,
            shared_stride=2 * size, dt=steps,
            dt_bias=None if space.step_bias is None else builder.keep(space.step_bias), A=builder.keep(space.decay),
            D=None if space.skipped is None else builder.keep(space.skipped), out=answers,
            states=states.take(space.matrix_bytes),
        )
    )  # fmt: skip
    return _gated(builder, None, answers, channels, projected + channels * item, 2 * channels)


def _short_convolution(builder: ProgramBuilder, mixer: ShortConvolution, given: Rows, states: StateLayout) -> Rows:
    channels = mixer.convolution.channels
    row = channels * builder.dtype.itemsize
    projected = builder.project("projected", mixer.projection, given)
    factors = projected + row, projected + 2 * row
    return Rows(_convolve(builder, mixer.convolution, projected, 3 * channels, states, factors), channels)


def _project_exactly(
    builder: ProgramBuilder, given: Rows, what: str, stacked: Stacked, norm: Norm | None = None, parts: int = 1
) -> int:
    """Address of an unquantized product that controls how a state forgets: rounding would add up over its tokens.

    Args:
        norm: applied to each of the result's `parts` equal parts.
    """
    packed = builder.pack_exactly(stacked.joined())
    made = builder.buffer(what, packed.n, builder.dtype)
    builder.add_linear(packed, given, Output(out=made))
    if norm is not None:
        builder.add_norm_of_rows(norm, made, packed.n, parts)
    return made


def _convolve(
    builder: ProgramBuilder,
    convolution: Convolution,
    given: int,
    stride: int,
    states: StateLayout,
    factors: tuple[int | None, int | None] = (None, None),
) -> int:
    """Add a convolution; returns its result's address. `factors` are of its input and of its result."""
    convolved = builder.buffer("convolved", convolution.channels, builder.dtype)
    builder.add(
        CausalConvSpansOp(
            n=convolution.channels, taps=len(convolution.taps), weight=builder.keep(convolution.taps),
            bias=None if convolution.bias is None else builder.keep(convolution.bias),
            activation=Activation.named(convolution.activation), in_=given, stride=stride, in_factors=factors[0],
            out_factors=factors[1], out=convolved, states=states.take(convolution.state_bytes(builder.dtype)),
        )
    )  # fmt: skip
    return convolved


def _gated(builder: ProgramBuilder, gated: GatedNorm | None, given: int, columns: int, gate: int, stride: int) -> Rows:
    """Apply a norm, if there is one, and multiply by silu of the gate; returns the rows."""
    mixed = builder.rows("mixed", columns)
    norm = NormKind.COPY
    eps, group, gate_first, weight = 0.0, columns, False, torch.ones(columns)
    if gated is not None:
        norm, eps = NormKind.named(gated.norm.kind), gated.norm.eps
        group, gate_first = gated.width, gated.gate_first
        weight = gated.norm.weight.repeat(columns // len(gated.norm.weight))
    builder.add(
        GroupNormOp(
            n=columns, group=group, norm=norm, eps=eps, weight=builder.keep(weight), in_=given, out=mixed.at,
            pitch=mixed.stride, gate=gate, gate_stride=stride, gate_first=gate_first,
        )
    )  # fmt: skip
    return mixed
