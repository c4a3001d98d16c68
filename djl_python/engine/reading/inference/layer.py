"""Explains one layer's additions to the residual stream. Runs in the engine process, at load."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

from torch import Tensor

from ...checkpoints.linears import Linear
from ..comparison import factor_of, fitted_factors, rounded_factor, same
from ..recipe.activations import FUNCTIONS
from ..recipe.decoder import Body, Branch, Experts, Layer, Mlp
from ..recipe.mixers import Mixer
from ..recipe.primitives import Norm, NotUnderstoodError, Rotary
from ..watching.run import ModuleCall
from .attention import read_attention
from .experts import experts_call, read_experts, router_call
from .latent_attention import expansion_of, read_latent_attention
from .layer_record import LayerRecord, Projections
from .mlp import read_mlp
from .recurrent import read_recurrent
from .token_inputs import TokenInputsCall, read_token_branch


@dataclass(frozen=True)
class _BranchRecord(Generic[Body]):
    """A recorded branch: the norm `before` makes `input` of `source`; the norm `after` makes `output` of the result."""

    body: Body
    input: Tensor
    source: Tensor
    output: Tensor
    before: Norm | None
    after: Norm | None

    @classmethod
    def of(cls, record: LayerRecord, body: Body, given: Tensor, result: Tensor) -> _BranchRecord[Body]:
        """The branch of a body with this input and result, with the norms around it."""
        before, after = record.norm_into(given), record.norm_of(result)
        return cls(
            body=body,
            input=given,
            source=given if before is None else before.call.x,
            output=result if after is None else after.call.result,
            before=None if before is None else before.norm,
            after=None if after is None else after.norm,
        )

    def scaled(self, scale: float) -> Branch[Body]:
        return Branch(self.before, self.body, self.after, scale)


def read_layer(record: LayerRecord, rotaries: list[Rotary], positions: slice, inputs: TokenInputsCall | None) -> Layer:
    """A layer with mixers, or an MLP, or both; and with a branch of per-layer token inputs, if there are any.

    Raises:
        NotUnderstoodError: something could not be explained; the message says what.
    """
    mixed, rest = _mixers(record, rotaries, positions)
    beside = [] if inputs is None else rest[-2:]
    mlp = _mlp(record, rest[: len(rest) - len(beside)])
    if not mixed and mlp is None:
        raise NotUnderstoodError("nothing that is known")
    if any(not same(each.source, record.input) for each in mixed):
        raise NotUnderstoodError("the first linears do not read the layer's input")
    branches: list[_BranchRecord[Any]] = [*mixed, *([] if mlp is None else [mlp])]
    parallel = bool(mixed) and mlp is not None and same(mlp.source, record.input)
    ending = record.norm_to(record.result)
    result, mixed_norm = record.result if ending is None else ending.call.x, None
    if ending is not None and mlp is not None and mixed:
        mlp, mixed_norm = _after_a_norm(record, mlp)
        branches[-1] = mlp
    stream, scales = record.input.float(), list[float]()
    if mlp is not None and not parallel:
        scales = _scales(record, mixed, mlp.source.double() - stream)
        stream = _sum(stream, mixed, scales)
        if not same(stream, mlp.source):
            raise NotUnderstoodError("the MLP reads something else than the residual stream")
        if mixed_norm is not None:
            stream = mlp.input.reshape(stream.shape).float()
    left = branches[len(scales) :]
    # The branch of token inputs is added after the MLP, and the layer's factor applies after that.
    end = beside[0][0].x if beside else result
    factor = (
        1.0
        if beside
        else rounded_factor(fitted_factors([stream, *(each.output for each in left)], end)[0], record.constants)
    )
    more = _scales(record, left, end.double() / factor - stream)
    stream = _sum(stream, left, more)
    token_branch = None
    if inputs is not None:
        if not same(beside[0][0].x, stream):
            raise NotUnderstoodError("what is given beside the stream is gated by something else")
        token_branch, added = read_token_branch(record, beside, inputs)
        stream = stream + added.float()
        factor = rounded_factor(factor_of(stream, result), record.constants)
    if not same(factor * stream, result):
        raise NotUnderstoodError("its result is not the sum of its branches")
    scaled = [each.scaled(scale) for each, scale in zip(branches, scales + more, strict=True)]
    return Layer(
        mixers=scaled[: len(mixed)],
        mlp=None if mlp is None else scaled[-1],
        parallel=parallel,
        token_branch=token_branch,
        factor=factor,
        mixed_norm=mixed_norm,
        end_norm=None if ending is None else ending.norm,
    )


def _after_a_norm(record: LayerRecord, mlp: _BranchRecord[Any]) -> tuple[_BranchRecord[Any], Norm]:
    """The MLP of a post-norm layer, which is added to the normed stream that it reads, and the norm that made that."""
    norm_call = record.norm_to(mlp.input)
    if norm_call is None:
        raise NotUnderstoodError("a norm at the end, but none before the MLP")
    return replace(mlp, source=norm_call.call.x, before=None), norm_call.norm


def _scales(record: LayerRecord, branches: Sequence[_BranchRecord[Any]], added: Tensor) -> list[float]:
    """The factor of each branch in the sum."""
    fitted = fitted_factors([each.output for each in branches], added)
    return [rounded_factor(scale, record.constants) for scale in fitted]


def _sum(stream: Tensor, branches: Sequence[_BranchRecord[Any]], scales: list[float]) -> Tensor:
    for each, scale in zip(branches, scales, strict=True):
        stream = stream + scale * each.output.float()
    return stream


def _mixers(
    record: LayerRecord, rotaries: list[Rotary], positions: slice
) -> tuple[list[_BranchRecord[Mixer]], list[tuple[ModuleCall, Linear]]]:
    """The layer's mixers, in order, and the linears after them."""

    def attention(part: LayerRecord) -> tuple[Mixer, Projections]:
        part = part.only(function_calls=[])
        expanding = expansion_of(part)
        if expanding is None:
            return read_attention(part, rotaries, positions)
        return read_latent_attention(part, expanding, rotaries, positions)

    def recurrent(part: LayerRecord) -> tuple[Mixer, Projections]:
        return read_recurrent(part.only(attention_calls=[]))

    if len(record.attention_calls) > 1:
        raise NotUnderstoodError("more than one attention")
    kinds = [recurrent] * bool(record.function_calls) + [attention] * bool(record.attention_calls)
    reasons: list[NotUnderstoodError] = []
    for order in itertools.permutations(kinds):
        mixers: list[_BranchRecord[Mixer]] = []
        rest = record.linears
        try:
            for read in order:
                mixer, linears = read(record.only(linears=rest))
                mixers.append(_BranchRecord.of(record, mixer, linears.input, linears.output_call.result))
                rest = linears.rest
        except NotUnderstoodError as reason:
            reasons.append(reason)
            continue
        return mixers, rest
    raise reasons[0]


def _mlp(record: LayerRecord, linears: list[tuple[ModuleCall, Linear]]) -> _BranchRecord[Mlp | Experts] | None:
    if not linears and experts_call(record.module_calls) is None:
        return None
    return _BranchRecord.of(record, *_mlp_or_experts(record, linears))


def _mlp_or_experts(
    record: LayerRecord, linears: list[tuple[ModuleCall, Linear]]
) -> tuple[Mlp | Experts, Tensor, Tensor]:
    """(the MLP, its input, its result)"""
    if (called := experts_call(record.module_calls)) is None:
        return read_mlp(linears, factors=record.constants, others=record.module_calls)
    router = router_call(record.module_calls, called)
    experts, x, result = read_experts(called, router, FUNCTIONS)
    x, result = x[None], result[None]
    others = [(call, linear) for call, linear in linears if call.module is not router.module]
    if not others:
        return experts, x, result
    gates = [pair for pair in others if len(pair[1].weight) == 1]
    experts.shared, shared_input, shared_result = read_mlp([pair for pair in others if pair not in gates])
    if not same(shared_input, x):
        raise NotUnderstoodError("the shared expert reads something else than the others")
    if gates:
        ((call, experts.shared_gate),) = gates
        shared_result = shared_result * call.result.sigmoid().reshape(1, -1, 1)
    return experts, x, result + shared_result.reshape(result.shape)
