"""Reads one layer: what it adds to the residual stream. Runs in the engine process, once."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .layer_reader import LayerReader
from .near import factor_of, rounded, same
from .read_attention import read_attention
from .read_experts import experts_event, read_experts, router_event
from .read_inputs import SeenInputs, read_branch
from .read_latents import expansion_of, read_latents
from .read_mlp import FUNCTIONS, read_mlp
from .read_states import read_states
from .recipe import Attending, Experts, Layer, Linear, Mlp, Norm, NotUnderstoodError, Rotary, Stateful
from .watch import Event


@dataclass(frozen=True)
class _Branch:
    """What a layer adds to the stream, of what, and the norms before and after."""

    source: Tensor
    made: Tensor
    before: Norm | None
    after: Norm | None

    @classmethod
    def of(cls, reader: LayerReader, given: Tensor, made: Tensor) -> _Branch:
        """From what the branch's modules were given and made."""
        before, after = reader.norm_into(given), reader.norm_of(made)
        return cls(
            source=given if before is None else before[0].x,
            made=made if after is None else after[0].result,
            before=None if before is None else before[1],
            after=None if after is None else after[1],
        )


def read_layer(reader: LayerReader, turns: list[Rotary], places: slice, inputs: SeenInputs | None) -> Layer:
    """A layer that mixes tokens, or has an MLP, or both; and a branch of what it is given of each token, if it is.

    Raises:
        NotUnderstoodError: says at what.
    """
    mixer, mixed, rest = _mixer(reader, turns, places)
    beside = [] if inputs is None else rest[-2:]
    mlp, through = _mlp(reader, rest[: len(rest) - len(beside)])
    first = mixed or through
    if first is None:
        raise NotUnderstoodError("nothing that is known")
    if not same(first.source, reader.given):
        raise NotUnderstoodError("the first linears do not read the layer's input")
    parallel = mixed is not None and through is not None and same(through.source, reader.given)
    if mixed is None or through is None:
        scale = rounded(factor_of(first.made, reader.result - reader.given))
    elif parallel:
        scale = rounded(factor_of(mixed.made, reader.result - reader.given - through.made))
    else:
        scale = rounded(factor_of(mixed.made, through.source - reader.given))
    stream = reader.given.float()
    for branch in (mixed, through):
        if branch is None:
            continue
        if not parallel and not same(stream, branch.source):
            raise NotUnderstoodError("the MLP reads something else than the residual stream")
        stream = stream + scale * branch.made.float()
    token_branch = None
    if inputs is not None:
        if not same(beside[0][0].x, stream):
            raise NotUnderstoodError("what is given beside the stream is gated by something else")
        token_branch, added = read_branch(reader, beside, inputs)
        stream = stream + added.float()
    factor = rounded(factor_of(stream, reader.result))
    if not same(factor * stream, reader.result):
        raise NotUnderstoodError("its result is not the sum of its branches")
    return Layer(
        before_mixer=None if mixed is None else mixed.before,
        mixer=mixer,
        after_mixer=None if mixed is None else mixed.after,
        before_mlp=None if through is None else through.before,
        mlp=mlp,
        after_mlp=None if through is None else through.after,
        parallel=parallel,
        scale=scale,
        token_branch=token_branch,
        factor=factor,
    )


def _mixer(
    reader: LayerReader, turns: list[Rotary], places: slice
) -> tuple[Attending | Stateful | None, _Branch | None, list[tuple[Event, Linear]]]:
    """What mixes tokens, what it adds, and the linears after it."""
    if not reader.calls and not reader.called:
        return None, None, reader.linears
    mixer: Attending | Stateful
    if len(reader.calls) == 1 and not reader.called:
        expanding = expansion_of(reader)
        if expanding is None:
            mixer, linears = read_attention(reader, turns, places)
        else:
            mixer, linears = read_latents(reader, expanding, turns, places)
    else:
        mixer, linears = read_states(reader)
    return mixer, _Branch.of(reader, linears.given, linears.output_event.result), linears.rest


def _mlp(reader: LayerReader, linears: list[tuple[Event, Linear]]) -> tuple[Mlp | Experts | None, _Branch | None]:
    if not linears and experts_event(reader.events) is None:
        return None, None
    mlp, given, made = _mlp_or_experts(reader, linears)
    return mlp, _Branch.of(reader, given, made)


def _mlp_or_experts(reader: LayerReader, linears: list[tuple[Event, Linear]]) -> tuple[Mlp | Experts, Tensor, Tensor]:
    """(the MLP, its input, its result)"""
    if (called := experts_event(reader.events)) is None:
        return read_mlp(linears)
    router = router_event(reader.events, called)
    experts, x, result = read_experts(called, router, FUNCTIONS)
    x, result = x[None], result[None]
    others = [(event, linear) for event, linear in linears if event.module is not router.module]
    if not others:
        return experts, x, result
    gates = [pair for pair in others if len(pair[1].weight) == 1]
    experts.shared, shared_input, shared_result = read_mlp([pair for pair in others if pair not in gates])
    if not same(shared_input, x):
        raise NotUnderstoodError("the shared expert reads something else than the others")
    if gates:
        ((event, experts.shared_gate),) = gates
        shared_result = shared_result * event.result.sigmoid().reshape(1, -1, 1)
    return experts, x, result + shared_result.reshape(result.shape)
