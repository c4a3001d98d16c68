"""Explains mixers with a recurrent state of fixed size. Runs in the engine process, at load."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from ...checkpoints.linears import Linear
from ..comparison import same
from ..recipe.limits import LANES, MAX_KEY_DIM, MAX_STATE_SIZE
from ..recipe.mixers import Convolution, DeltaNet, GatedNorm, RecurrentMixer, ShortConvolution, StateSpace
from ..recipe.primitives import NotUnderstoodError, Stacked
from ..watching.functions import CONVOLUTION, DELTA_RULE, SCAN, SELECTIVE_SCAN, FunctionCall
from ..watching.run import ModuleCall
from .columns import columns_if_any, columns_of, other_columns, read_convolution
from .layer_record import LayerRecord, Projections, side_by_side
from .norms import gated_and_normed, gated_norm_candidates
from .selective_state_space import read_selective_state_space


def read_recurrent(record: LayerRecord) -> tuple[RecurrentMixer, Projections]:
    """The layer's mixer, and its linears.

    Raises:
        NotUnderstoodError: it is something else.
    """
    called = {each.name: each for each in record.function_calls}
    conv_call = called.pop(CONVOLUTION, None)
    if record.attention_calls or conv_call is None or len(called) > 1 or len(record.function_calls) != len(called) + 1:
        raise NotUnderstoodError("tokens are mixed in an unknown way")
    if DELTA_RULE in called:
        return _delta_net(record, conv_call, called[DELTA_RULE])
    if SCAN in called:
        return _state_space(record, conv_call, called[SCAN])
    if SELECTIVE_SCAN in called:
        return read_selective_state_space(record, conv_call, called[SELECTIVE_SCAN])
    return _short_convolution(record, conv_call)


def _delta_net(record: LayerRecord, conv_call: FunctionCall, rule_call: FunctionCall) -> tuple[DeltaNet, Projections]:
    given = _without_repeated_heads(rule_call.arguments)
    tokens, key_heads, key_dim = given["key"].shape[1:]
    heads, value_dim = given["value"].shape[2:]
    if key_dim % LANES or value_dim % LANES or key_dim > MAX_KEY_DIM or heads % key_heads:
        raise NotUnderstoodError(f"a delta rule with heads of {key_dim} and {value_dim} dimensions")
    if not given.get("use_qk_l2norm_in_kernel"):
        raise NotUnderstoodError("a delta rule of queries and keys of any length")
    normed = _gated_norm(record, rule_call.result[0])
    if normed is None:
        raise NotUnderstoodError("no norm with a gate takes what was mixed")
    norm, gate, mixed = normed
    linears = record.projections(lambda x, _: torch.equal(x.reshape(-1), mixed.reshape(-1)))
    mixing = [given[name] for name in ("query", "key", "value")]
    convolution, through = _ordered_convolution(record, conv_call, linears.outputs, mixing)
    gates = columns_of(gate.reshape(tokens, -1), linears.outputs)
    others = other_columns(torch.cat([through, gates]), linears.outputs.shape[1])
    input_rates, max_beta = _input_rates(linears.outputs[:, others], given["beta"][0])
    forget_rates = [i for i in range(len(others)) if i not in input_rates]
    decay, decay_bias = _decay(record, linears.outputs[:, others][:, forget_rates], given["g"][0])
    net = DeltaNet(
        heads=heads,
        key_heads=key_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        projection=Stacked(linears.linears, torch.cat([through, gates])),
        rates=Stacked(linears.linears, others[[*forget_rates, *input_rates]]),
        convolution=convolution,
        decay=decay,
        decay_bias=decay_bias,
        max_beta=max_beta,
        norm=norm,
        output=linears.output,
    )
    return net, linears


def _without_repeated_heads(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a delta rule with one head of queries and keys for each group of equal ones.

    transformers before 5.23 repeats them for the heads of values, later the delta rule itself does.
    """
    query, key = given["query"], given["key"]
    for times in range(key.shape[2], 1, -1):
        if key.shape[2] % times == 0 and all(_repeats(each, times) for each in (query, key)):
            return given | {"query": query[:, :, ::times], "key": key[:, :, ::times]}
    return given


def _repeats(x: Tensor, times: int) -> bool:
    """Whether each head of x (1, tokens, heads, dim) is there as often, beside itself."""
    return torch.equal(x, x[:, :, ::times].repeat_interleave(times, 2))


def _state_space(
    record: LayerRecord, conv_call: FunctionCall, scan_call: FunctionCall
) -> tuple[StateSpace, Projections]:
    given = scan_call.arguments
    tokens, heads, dim = given["hidden_states"].shape[1:]
    groups, size = given["B"].shape[2:]
    if size % LANES or size > MAX_STATE_SIZE or heads % groups:
        raise NotUnderstoodError(f"a state space with heads of {dim} by {size}")
    if not given.get("dt_softplus") or given.get("z") is not None:
        raise NotUnderstoodError("a state space whose steps or result are changed in an unknown way")
    normed = _gated_norm(record, scan_call.result)

    def takes(x: Tensor, _: list[tuple[ModuleCall, Linear]]) -> bool:
        if normed is None:
            return bool(x.shape[-1] == heads * dim)
        return x.numel() == normed[2].numel() and torch.equal(x, normed[2].to(x.dtype))

    linears = record.projections(takes)
    made, factors = _scaled_columns(record, linears.outputs, conv_call.arguments["hidden_states"][0].T)
    convolution, through = _ordered_convolution(
        record, conv_call, made, [given[name] for name in ("hidden_states", "B", "C")]
    )
    steps = columns_of(given["dt"][0], made)
    if normed is None:
        gates = other_columns(torch.cat([through, steps]), made.shape[1])
        mixed = scan_call.result.reshape(tokens, -1).float()
        opened = made[:, gates].float()
        if opened.shape != mixed.shape or not same(mixed * nn.functional.silu(opened), linears.output_call.x):
            raise NotUnderstoodError("a state space without a gate, or with another")
    else:
        gates = columns_of(normed[1].reshape(tokens, -1), made)
    projected = torch.cat([through, gates])
    bias, skipped = given.get("dt_bias"), given.get("D")
    least, most = given.get("dt_limit", (0.0, math.inf))
    space = StateSpace(
        heads=heads,
        groups=groups,
        dim=dim,
        size=size,
        projection=Stacked(linears.linears, projected, None if factors is None else factors[projected]),
        steps=Stacked(linears.linears, steps, None if factors is None else factors[steps]),
        convolution=convolution,
        decay=record.own_numbers(given["A"]).contiguous(),
        step_bias=torch.zeros(heads) if bias is None else record.own_numbers(bias).contiguous(),
        skipped=None if skipped is None else record.own_numbers(skipped).contiguous(),
        least_step=least,
        most_step=most,
        norm=None if normed is None else normed[0],
        output=linears.output,
    )
    return space, linears


def _scaled_columns(record: LayerRecord, made: Tensor, entering: Tensor) -> tuple[Tensor, Tensor | None]:
    """(projected columns that explain what is convolved, the layer's buffer of factors on them or None)"""
    buffers = (each.flatten() for each in record.layer.buffers() if each.numel() == made.shape[1])
    for factors in (None, *buffers):
        product = made if factors is None else (made * factors).to(entering.dtype)
        if (columns_if_any(entering, product) >= 0).all():
            return product, factors
    raise NotUnderstoodError("what is convolved is not what was projected")


def _ordered_convolution(
    record: LayerRecord, conv_call: FunctionCall, made: Tensor, mixed: list[Tensor]
) -> tuple[Convolution, Tensor]:
    """(the convolution with channels in the order in which they are mixed, the projected columns that it reads)

    Args:
        mixed: what the convolution's channels are split into, (1, tokens, heads, dim) each.
    """
    channels = columns_of(torch.cat([each[0].flatten(1) for each in mixed], -1), conv_call.result[0].T)
    entering = conv_call.arguments["hidden_states"][0].T
    if not torch.equal(channels.sort().values, torch.arange(entering.shape[1])):
        raise NotUnderstoodError("something else is convolved")
    return read_convolution(record, conv_call, channels), columns_of(entering, made)[channels]


def _gated_norm(record: LayerRecord, answers: Tensor) -> tuple[GatedNorm, Tensor, Tensor] | None:
    """(the norm that `answers` go through, its gate, its result); None if there is none."""
    for call in record.module_calls:
        given = [each for each in (*call.args, *call.kwargs.values()) if isinstance(each, Tensor)]
        if len(given) != 2 or given[0].numel() != given[1].numel():
            continue
        if not torch.equal(given[0].reshape(-1), answers.reshape(-1)):
            continue
        for own, copied in zip(*map(gated_norm_candidates, (call.module, call.copied)), strict=True):
            if copied.norm.bias is None and same(gated_and_normed(given[0], given[1], copied), call.result):
                return own, given[1], call.result
    return None


def _input_rates(projected: Tensor, beta: Tensor) -> tuple[list[int], float]:
    """(the projected columns whose sigmoids are beta (tokens, heads), the factor on the sigmoids)"""
    for most in (1.0, 2.0):
        made = most * projected.float().sigmoid()
        nearest = torch.cdist(beta.float().T, made.T).argmin(1)
        if len(set(nearest.tolist())) == len(nearest) and same(made[:, nearest], beta):
            return nearest.tolist(), most
    raise NotUnderstoodError("what a delta rule puts in is not a sigmoid")


def _decay(record: LayerRecord, projected: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """`DeltaNet.decay` and `decay_bias`, each (heads,): two of the layer's parameters explain g, (tokens, heads)."""
    if projected.shape == g.shape:
        fitting = [pair for pair in record.parameters() if pair[0].shape == g.shape[1:]]
        for (logarithm, own_logarithm), (bias, own_bias) in itertools.permutations(fitting, 2):
            if same(-logarithm.exp() * nn.functional.softplus(projected + bias), g):
                return -own_logarithm.float().exp(), own_bias.float()
    raise NotUnderstoodError("a delta rule that forgets in an unknown way")


def _short_convolution(record: LayerRecord, conv_call: FunctionCall) -> tuple[ShortConvolution, Projections]:
    entering, left = conv_call.arguments["hidden_states"][0].T, conv_call.result[0].T
    channels = entering.shape[1]
    order: list[Tensor] = []

    def takes(x: Tensor, before: list[tuple[ModuleCall, Linear]]) -> bool:
        """Whether x is a third of the projection times the convolution's result for the product of the other thirds."""
        made = side_by_side(before)
        if made.shape[1] != 3 * channels or x.shape[-1] != channels:
            return False
        places = torch.arange(3 * channels).chunk(3)
        for read, times, after in itertools.permutations(places):
            if same(made[:, read] * made[:, times], entering) and same(made[:, after] * left, x):
                order[:] = read, times, after
                return True
        return False

    linears = record.projections(takes)
    mixer = ShortConvolution(
        projection=Stacked(linears.linears, torch.cat(order)),
        convolution=read_convolution(record, conv_call, torch.arange(channels)),
        output=linears.output,
    )
    return mixer, linears
