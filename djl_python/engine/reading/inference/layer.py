"""Reads one layer: what it adds to the residual stream. Runs in the engine process, once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

from torch import Tensor

from ..comparison import factor_of, fitted, same, settled
from ..recipe.activations import FUNCTIONS
from ..recipe.decoder import Branch, Experts, Layer, Mlp, What
from ..recipe.mixers import Mixer
from ..recipe.primitives import Linear, Norm, NotUnderstoodError, Rotary
from ..watching.run import Event
from .attention import read_attention
from .experts import experts_event, read_experts, router_event
from .latent_attention import expansion_of, read_latents
from .layer_record import LayerReader, Projected
from .mlp import read_mlp
from .recurrent import read_states
from .token_inputs import SeenInputs, read_branch


@dataclass(frozen=True)
class _Seen(Generic[What]):
    """A recorded branch: `before` norms `source` to `given`, which `what` reads; `after` norms its result to `made`."""

    what: What
    given: Tensor
    source: Tensor
    made: Tensor
    before: Norm | None
    after: Norm | None

    @classmethod
    def of(cls, reader: LayerReader, what: What, given: Tensor, made: Tensor) -> _Seen[What]:
        """The branch of what read `given` and made `made`, with the norms around it."""
        before, after = reader.norm_into(given), reader.norm_of(made)
        return cls(
            what=what,
            given=given,
            source=given if before is None else before.event.x,
            made=made if after is None else after.event.result,
            before=None if before is None else before.norm,
            after=None if after is None else after.norm,
        )

    def times(self, scale: float) -> Branch[What]:
        return Branch(self.before, self.what, self.after, scale)


def read_layer(reader: LayerReader, turns: list[Rotary], places: slice, inputs: SeenInputs | None) -> Layer:
    """A layer with mixers, or an MLP, or both; and with a branch of per-layer token inputs, if there are any.

    Raises:
        NotUnderstoodError: something could not be explained; the message says what.
    """
    mixed, rest = _mixers(reader, turns, places)
    beside = [] if inputs is None else rest[-2:]
    through = _mlp(reader, rest[: len(rest) - len(beside)])
    if not mixed and through is None:
        raise NotUnderstoodError("nothing that is known")
    if any(not same(each.source, reader.given) for each in mixed):
        raise NotUnderstoodError("the first linears do not read the layer's input")
    branches: list[_Seen[Any]] = [*mixed, *([] if through is None else [through])]
    parallel = bool(mixed) and through is not None and same(through.source, reader.given)
    ending = reader.norm_to(reader.result)
    result, mixed_norm = reader.result if ending is None else ending.event.x, None
    if ending is not None and through is not None and mixed:
        through, mixed_norm = _after_a_norm(reader, through)
        branches[-1] = through
    stream, scales = reader.given.float(), list[float]()
    if through is not None and not parallel:
        scales = _scales(reader, mixed, through.source.double() - stream)
        stream = _sum(stream, mixed, scales)
        if not same(stream, through.source):
            raise NotUnderstoodError("the MLP reads something else than the residual stream")
        if mixed_norm is not None:
            stream = through.given.reshape(stream.shape).float()
    left = branches[len(scales) :]
    # The branch of token inputs is added after the MLP, and the layer's factor applies after that.
    end = beside[0][0].x if beside else result
    factor = 1.0 if beside else settled(fitted([stream, *(each.made for each in left)], end)[0], reader.numbers)
    more = _scales(reader, left, end.double() / factor - stream)
    stream = _sum(stream, left, more)
    token_branch = None
    if inputs is not None:
        if not same(beside[0][0].x, stream):
            raise NotUnderstoodError("what is given beside the stream is gated by something else")
        token_branch, added = read_branch(reader, beside, inputs)
        stream = stream + added.float()
        factor = settled(factor_of(stream, result), reader.numbers)
    if not same(factor * stream, result):
        raise NotUnderstoodError("its result is not the sum of its branches")
    scaled = [each.times(scale) for each, scale in zip(branches, scales + more, strict=True)]
    return Layer(
        mixers=scaled[: len(mixed)],
        mlp=None if through is None else scaled[-1],
        parallel=parallel,
        token_branch=token_branch,
        factor=factor,
        mixed_norm=mixed_norm,
        end_norm=None if ending is None else ending.norm,
    )


def _after_a_norm(reader: LayerReader, through: _Seen[Any]) -> tuple[_Seen[Any], Norm]:
    """The MLP of a post-norm layer, which is added to the normed stream that it reads, and the norm that made that."""
    found = reader.norm_to(through.given)
    if found is None:
        raise NotUnderstoodError("a norm at the end, but none before the MLP")
    return replace(through, source=found.event.x, before=None), found.norm


def _scales(reader: LayerReader, branches: Sequence[_Seen[Any]], added: Tensor) -> list[float]:
    """The factor of each branch in the sum."""
    return [settled(scale, reader.numbers) for scale in fitted([each.made for each in branches], added)]


def _sum(stream: Tensor, branches: Sequence[_Seen[Any]], scales: list[float]) -> Tensor:
    for each, scale in zip(branches, scales, strict=True):
        stream = stream + scale * each.made.float()
    return stream


def _mixers(
    reader: LayerReader, turns: list[Rotary], places: slice
) -> tuple[list[_Seen[Mixer]], list[tuple[Event, Linear]]]:
    """The layer's mixers, in order, and the linears after them."""

    def attention(part: LayerReader) -> tuple[Mixer, Projected]:
        part = part.only(called=[])
        expanding = expansion_of(part)
        if expanding is None:
            return read_attention(part, turns, places)
        return read_latents(part, expanding, turns, places)

    def states(part: LayerReader) -> tuple[Mixer, Projected]:
        return read_states(part.only(calls=[]))

    if len(reader.calls) > 1:
        raise NotUnderstoodError("more than one attention")
    kinds = [states] * bool(reader.called) + [attention] * bool(reader.calls)
    reasons: list[NotUnderstoodError] = []
    for order in itertools.permutations(kinds):
        found: list[_Seen[Mixer]] = []
        rest = reader.linears
        try:
            for read in order:
                mixer, linears = read(reader.only(linears=rest))
                found.append(_Seen.of(reader, mixer, linears.given, linears.output_event.result))
                rest = linears.rest
        except NotUnderstoodError as reason:
            reasons.append(reason)
            continue
        return found, rest
    raise reasons[0]


def _mlp(reader: LayerReader, linears: list[tuple[Event, Linear]]) -> _Seen[Mlp | Experts] | None:
    if not linears and experts_event(reader.events) is None:
        return None
    return _Seen.of(reader, *_mlp_or_experts(reader, linears))


def _mlp_or_experts(reader: LayerReader, linears: list[tuple[Event, Linear]]) -> tuple[Mlp | Experts, Tensor, Tensor]:
    """(the MLP, its input, its result)"""
    if (called := experts_event(reader.events)) is None:
        return read_mlp(linears, factors=reader.numbers, others=reader.events)
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
