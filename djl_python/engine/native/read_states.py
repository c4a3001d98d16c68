"""Reads what mixes tokens with a state of fixed size. Runs in the engine process, once."""

from __future__ import annotations

import itertools
from typing import Final

import torch
from torch import Tensor, nn

from .delta_rule import LANES, MOST_DIM
from .layer_reader import LayerReader, Projected, made_by
from .near import same
from .parts import as_norm
from .pool import ACTIVATIONS
from .recipe import Convolution, DeltaNet, Linear, Norm, NotUnderstoodError, ShortConvolution, Stacked
from .watch import Event
from .watch_functions import CONVOLUTION, DELTA_RULE, Called

MOST_TAPS: Final = 8  # kMostTaps of conv.h


def read_states(reader: LayerReader) -> tuple[DeltaNet | ShortConvolution, Projected]:
    """The layer's mixer, and what its linears did.

    Raises:
        NotUnderstoodError: it is something else.
    """
    convolved = [each for each in reader.called if each.name == CONVOLUTION]
    ruled = [each for each in reader.called if each.name == DELTA_RULE]
    if reader.calls or len(convolved) != 1 or len(ruled) > 1:
        raise NotUnderstoodError("tokens are mixed in an unknown way")
    return _delta_net(reader, convolved[0], ruled[0]) if ruled else _short_convolution(reader, convolved[0])


def _delta_net(reader: LayerReader, convolved: Called, ruled: Called) -> tuple[DeltaNet, Projected]:
    given = ruled.given
    tokens, key_heads, key_dim = given["key"].shape[1:]
    heads, value_dim = given["value"].shape[2:]
    if key_dim % LANES or value_dim % LANES or key_dim > MOST_DIM or heads % key_heads:
        raise NotUnderstoodError(f"a delta rule with heads of {key_dim} and {value_dim} dimensions")
    if not given.get("use_qk_l2norm_in_kernel"):
        raise NotUnderstoodError("a delta rule of queries and keys of any length")
    norm, gate, mixed = _gated_norm(reader, ruled.made[0])
    linears = reader.projected(lambda x, _: torch.equal(x.reshape(-1), mixed.reshape(-1)))
    entering = convolved.given["hidden_states"][0].T
    of_heads = torch.cat([given[name][0].flatten(1) for name in ("query", "key", "value")], -1)
    channels = _columns(of_heads, convolved.made[0].T)
    if not torch.equal(channels.sort().values, torch.arange(entering.shape[1])):
        raise NotUnderstoodError("queries, keys and values are not all that is convolved")
    through = _columns(entering, linears.made)[channels]
    gates = _columns(gate.reshape(tokens, -1), linears.made)
    others = sorted(set(range(linears.made.shape[1])) - set(torch.cat([through, gates]).tolist()))
    putting, most_beta = _put_in(linears.made[:, others], given["beta"][0])
    forgetting = [i for i in range(len(others)) if i not in putting]
    decay, decay_bias = _decay(reader.layer, linears.made[:, others][:, forgetting], given["g"][0])
    rates = [others[i] for i in (*forgetting, *putting)]
    net = DeltaNet(
        heads=heads,
        key_heads=key_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        projection=Stacked(linears.linears, torch.cat([through, gates])),
        rates=Stacked(linears.linears, torch.tensor(rates)),
        convolution=_convolution(convolved, channels),
        decay=decay,
        decay_bias=decay_bias,
        most_beta=most_beta,
        norm=norm,
        output=linears.output,
    )
    return net, linears


def _gated_norm(reader: LayerReader, answers: Tensor) -> tuple[Norm, Tensor, Tensor]:
    """(the norm that answers go through, the gate that multiplies its result, what comes of it)"""
    for event in reader.events:
        given = [each for each in (*event.given, *event.keywords.values()) if isinstance(each, Tensor)]
        if len(given) == 2 and torch.equal(given[0].reshape(-1), answers.reshape(-1)):
            norm = as_norm(event, nn.functional.silu(given[1].float()))
            if norm is not None and norm.bias is None:
                return norm, given[1], event.result
    raise NotUnderstoodError("no norm with a gate takes the delta rule's answers")


def _columns(wanted: Tensor, among: Tensor) -> Tensor:
    """(columns,) which columns of one matrix of numbers, (tokens, ...), are those of another.

    Raises:
        NotUnderstoodError: some are not there.
    """
    places = {column.contiguous().numpy().tobytes(): i for i, column in enumerate(_bits(among).T)}
    found = [places.get(column.contiguous().numpy().tobytes()) for column in _bits(wanted).T]
    if None in found:
        raise NotUnderstoodError("what mixes tokens is not what was projected")
    return torch.tensor(found)


def _bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.int16 if x.dtype == torch.bfloat16 else torch.int32)


def _put_in(projected: Tensor, beta: Tensor) -> tuple[list[int], float]:
    """(which columns the sigmoids in beta (tokens, heads) are of, times what)"""
    for most in (1.0, 2.0):
        made = most * projected.float().sigmoid()
        nearest = torch.cdist(beta.float().T, made.T).argmin(1)
        if len(set(nearest.tolist())) == len(nearest) and same(made[:, nearest], beta):
            return nearest.tolist(), most
    raise NotUnderstoodError("what a delta rule puts in is not a sigmoid")


def _decay(layer: nn.Module, projected: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """`DeltaNet.decay` and `decay_bias`, each (heads,): two of the layer's parameters explain g, (tokens, heads)."""
    if projected.shape == g.shape:
        own = [each.data.float() for each in layer.parameters() if each.shape == g.shape[1:]]
        for logarithm, bias in itertools.permutations(own, 2):
            decay = -logarithm.exp()
            if same(decay * nn.functional.softplus(projected.float() + bias), g):
                return decay, bias
    raise NotUnderstoodError("a delta rule that forgets in an unknown way")


def _short_convolution(reader: LayerReader, convolved: Called) -> tuple[ShortConvolution, Projected]:
    entering, left = convolved.given["hidden_states"][0].T, convolved.made[0].T
    channels = entering.shape[1]
    order: list[Tensor] = []

    def takes(x: Tensor, before: list[tuple[Event, Linear]]) -> bool:
        """Whether x is a third of what was projected times what was convolved, that being the product of the others."""
        made = made_by(before)
        if made.shape[1] != 3 * channels or x.shape[-1] != channels:
            return False
        places = torch.arange(3 * channels).chunk(3)
        for read, times, after in itertools.permutations(places):
            if same(made[:, read] * made[:, times], entering) and same(made[:, after] * left, x):
                order[:] = read, times, after
                return True
        return False

    linears = reader.projected(takes)
    mixer = ShortConvolution(
        projection=Stacked(linears.linears, torch.cat(order)),
        convolution=_convolution(convolved, torch.arange(channels)),
        output=linears.output,
    )
    return mixer, linears


def _convolution(convolved: Called, channels: Tensor) -> Convolution:
    """Of these channels, in this order."""
    weight, bias = convolved.given["weight"], convolved.given.get("bias")
    activation = convolved.given.get("activation")
    activation = "silu" if activation == "swish" else activation
    if activation not in ACTIVATIONS or weight.shape[1] > MOST_TAPS:
        raise NotUnderstoodError(f"a convolution of {weight.shape[1]} tokens with {activation}")
    return Convolution(
        taps=weight.float()[channels].T.contiguous(),
        bias=None if bias is None else bias.float()[channels].contiguous(),
        activation=activation,
    )
