"""Lays out what mixes tokens with a state of fixed size instead of a cache. Runs in the engine process, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .delta_rule import EPS
from .layout import STORE, Layout
from .pool import ACTIVATIONS, NORMS, Kind
from .recipe import Convolution, DeltaNet, ShortConvolution


@dataclass
class StatePlaces:
    """Where the next layer's states lie, one for each slot.

    Args:
        next: address of the first.
    """

    next: int
    slots: int

    def take(self, state_bytes: int) -> int:
        begin = self.next
        self.next += self.slots * state_bytes
        return begin


def lay_out_delta_net(layout: Layout, net: DeltaNet, states: StatePlaces, *, last: bool) -> int:
    """Where `net.output` finds what it reads."""
    item = layout.dtype.itemsize
    channels, inner = net.convolution.channels, net.heads * net.value_dim
    columns = channels + inner
    # Rounding what a state forgets by would add up over its tokens.
    rates = layout.buffer("rates", 2 * net.heads, layout.dtype)
    layout.add_linear(layout.pack_exactly(net.rates.joined()), layout.normed, rates, mode=STORE)
    projected = _project(layout, net, columns)
    convolved = layout.buffer("convolved", channels, layout.dtype)
    _convolve(layout, net.convolution, projected, convolved, states, stride=columns)
    decay = layout.buffer("decay", 2 * net.heads, torch.float32)
    layout.add(
        Kind.DECAY, heads=net.heads, stride=2 * net.heads, scale=net.most_beta, in_=rates,
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
    mixed = layout.buffer("mixed", inner, layout.dtype)
    weight = layout.keep(net.norm.weight.repeat(net.heads))
    layout.add(
        Kind.NORM_ROWS, n=inner, k=net.value_dim, norm=NORMS[net.norm.kind], eps=net.norm.eps, weight=weight,
        in_=answers, keys=projected + channels * item, stride=columns, out=mixed,
    )  # fmt: skip
    return _wanted(layout, mixed, inner) if last else mixed


def lay_out_convolution(layout: Layout, mixer: ShortConvolution, states: StatePlaces, *, last: bool) -> int:
    """Where `mixer.output` finds what it reads."""
    channels = mixer.convolution.channels
    row = channels * layout.dtype.itemsize
    projected = _project(layout, mixer, 3 * channels)
    mixed = layout.buffer("mixed", channels, layout.dtype)
    _convolve(
        layout, mixer.convolution, projected, mixed, states, stride=3 * channels, keys=projected + row,
        values=projected + 2 * row,
    )  # fmt: skip
    return _wanted(layout, mixed, channels) if last else mixed


def _project(layout: Layout, mixer: DeltaNet | ShortConvolution, columns: int) -> int:
    projected = layout.buffer("projected", columns, layout.dtype)
    packed = layout.pack(mixer.projection.joined(), of=mixer.projection.parts)
    layout.add_linear(packed, layout.normed, projected, mode=STORE)
    return projected


def _convolve(layout: Layout, convolution: Convolution, given: int, out: int, states: StatePlaces, **more: Any) -> None:
    layout.add(
        Kind.CONVOLVE_ROWS, n=convolution.channels, dim=len(convolution.taps), in_=given, out=out,
        activation=ACTIVATIONS[convolution.activation], weight=layout.keep(convolution.taps),
        bias=None if convolution.bias is None else layout.keep(convolution.bias),
        routed=states.take(convolution.state_bytes(layout.dtype)), **more,
    )  # fmt: skip


def _wanted(layout: Layout, mixed: int, columns: int) -> int:
    """In the last layer, states are all that is needed of tokens whose logits nobody wants."""
    (wanted,) = layout.begin_late(("mixed", columns, layout.dtype, mixed))
    return wanted
