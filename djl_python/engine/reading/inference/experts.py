"""Explains a layer's mixture of experts: the router and the experts' weights. Runs in the engine process, at load.

transformers keeps a layer's experts in one module, as stacked weights, and gives it each token's chosen experts and
their weights. Candidates for these computations are tried: one has to reproduce the recorded result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ...checkpoints.expert_stacks import ExpertStack
from ...checkpoints.linears import Linear
from ..comparison import distance, factor_of, rounded_factor, same
from ..recipe.decoder import ExpertGroups, Experts, Router
from ..recipe.primitives import ExpertLinears, NotUnderstoodError
from ..watching.run import ModuleCall

_TRIED: Final = 2  # tokens that the experts' weights are tried on
_RANDOM_TOKENS: Final = 256  # that a router with groups is run on
_RANK_TOLERANCE: Final = 1e-5  # of the greatest rank


@dataclass(frozen=True)
class Assignment:
    """Tokens x (..., width), and their router's choice: each token's experts and their weights, (..., chosen)."""

    x: Tensor
    experts: Tensor
    weights: Tensor


def holds_experts(module: Any) -> bool:
    """Whether a module is the one that holds a layer's experts."""
    return _stacked(module, "down_proj") is not None


def experts_call(events: Sequence[ModuleCall]) -> ModuleCall | None:
    """The call of the module that holds a layer's experts, if it has any."""
    return next((call for call in events if holds_experts(call.module)), None)


def router_call(events: Sequence[ModuleCall], experts: ModuleCall) -> ModuleCall:
    """The call of the module that has a row of weights for each expert, and reads what the experts read.

    Raises:
        NotUnderstoodError: there is none.
    """
    count = len(experts.module.down_proj)
    x = _assignment(experts).x
    for call in events:
        weight = getattr(call.module, "weight", None)
        if isinstance(weight, Tensor) and weight.shape == (count, x.shape[1]) and same(call.x, x):
            return call
    raise NotUnderstoodError("experts without a router")


def read_experts(
    experts: ModuleCall, router: ModuleCall, activations: Mapping[str, Callable[[Tensor], Tensor]]
) -> tuple[Experts, Tensor, Tensor]:
    """(the experts without a shared MLP, their input (tokens, width), their result).

    Raises:
        NotUnderstoodError: the router or the experts could not be explained.
    """
    assignment = _assignment(experts)
    chosen_by = _read_router(router, assignment)
    result = experts.result.reshape(assignment.x.shape)
    first, down = _two_linears(experts.copied)
    candidates = list(_candidates(experts.copied, chosen_by, first, down, activations))
    made = _results(candidates, _terms(first, down, assignment), activations)
    off = [distance(by_candidate, result[:_TRIED]) for by_candidate in made.unbind(2)]
    nearest = off.index(min(off))
    if not same(made[..., nearest], result[:_TRIED]):
        raise NotUnderstoodError("the experts compute something unknown")
    own = _candidates(experts.module, chosen_by, *_two_linears(experts.module), activations)
    return next(itertools.islice(own, nearest, None))[0], assignment.x, result


def _two_linears(module: Any) -> tuple[ExpertLinears, ExpertLinears]:
    """The first linear of experts, of gate and up projection if there are both, and the second."""
    first = _linear(module, "gate_up_proj") or _linear(module, "up_proj")
    down = _linear(module, "down_proj")
    if first is None or down is None:
        raise NotUnderstoodError("experts without two linears")
    return first, down


def _assignment(call: ModuleCall) -> Assignment:
    """The inputs of the experts, by token: each tensor has two dimensions."""
    given = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, Tensor)]
    experts = next((value for value in given if not value.is_floating_point()), None)
    numbers = [value for value in given if value.is_floating_point()]
    if experts is None or len(numbers) != 2 or numbers[1].shape != experts.shape:
        raise NotUnderstoodError("experts are not given each token's choice")
    x, weights = numbers
    x = x.reshape(-1, x.shape[-1])
    return Assignment(x, experts.reshape(len(x), -1), weights.reshape(len(x), -1))


def _stacked(module: Any, name: str) -> Tensor | ExpertStack | None:
    weight = getattr(module, name, None)
    if isinstance(weight, ExpertStack):
        return weight
    return weight.data if isinstance(weight, Tensor) and weight.dim() == 3 else None


# ------------------------------------------------------------------------------------ the router


def _read_router(call: ModuleCall, assignment: Assignment) -> Router:
    own, module = call.module, call.copied
    linear, copied = (Linear(each.weight.data, _bias(each, "bias")) for each in (own, module))
    groupings = _groupings(module, assignment)
    if groupings:
        assignment = _assignment_of_random_tokens(module, assignment)
    scores = assignment.x.float() @ copied.numbers.float().T
    if copied.bias is not None:
        scores = scores + copied.bias.float()
    # A correction or groups that the module has are used.
    corrections = (*zip(_corrections(call, own), _corrections(call, module), strict=True), (None, None))
    for (own_correction, correction), groups in itertools.product(corrections, (*groupings, None)):
        for function, values in (("softmax", scores.softmax(-1)), ("sigmoid", scores.sigmoid())):
            ranks = values if correction is None else values + correction
            allowed = ranks if groups is None else _ranks_within_groups(ranks, groups)
            if not _have_the_greatest_ranks(assignment.experts, allowed):
                continue
            taken = values.gather(1, assignment.experts)
            for normalized in (False, True):
                made = taken / taken.sum(-1, keepdim=True) if normalized else taken
                factor = rounded_factor(factor_of(made, assignment.weights))
                if same(made * factor, assignment.weights):
                    chosen = assignment.experts.shape[1]
                    return Router(linear, chosen, function, own_correction, groups, normalized, factor)
    raise NotUnderstoodError("experts are chosen in an unknown way")


def _corrections(call: ModuleCall, module: Any) -> Iterator[Tensor]:
    """Corrections of the router, one number for each expert: its own, or an argument (LFM2)."""
    count = len(module.weight)
    for value in (*call.args, *call.kwargs.values()):
        if isinstance(value, Tensor) and value.shape == (count,) and value.is_floating_point():
            yield value.float()
    for part in module.modules():
        for name, tensor in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)):
            if tensor.numel() == count and tensor.is_floating_point() and name != "bias":
                yield tensor.data.float().reshape(-1)


def _groupings(module: Any, assignment: Assignment) -> list[ExpertGroups]:
    """The groupings of experts that transformers' routers may use, if the module says that it has groups."""
    experts = len(module.weight)
    count, taken = (getattr(module, name, None) or 1 for name in ("num_group", "topk_group"))
    if taken >= count or experts % count != 0 or taken * experts // count < assignment.experts.shape[1]:
        return []
    return [ExpertGroups(count, taken, ranks) for ranks in (2, 1) if ranks * count <= experts]


def _assignment_of_random_tokens(router: Any, like: Assignment) -> Assignment:
    """A router's choice for many random tokens: few tokens may choose the same experts with groups as without."""
    random = torch.randn(_RANDOM_TOKENS, like.x.shape[1], generator=torch.Generator().manual_seed(0))
    x = (random * like.x.float().std()).to(like.x)
    made = [value for value in router(x) if isinstance(value, Tensor)]
    chosen = [value for value in made if not value.is_floating_point()]
    weights = [value for value in made if value.is_floating_point() and chosen and value.shape == chosen[0].shape]
    if not weights:
        raise NotUnderstoodError("a router that doesn't return the experts it chooses, and their weights")
    return Assignment(x, chosen[0], weights[0])


def _ranks_within_groups(ranks: Tensor, groups: ExpertGroups) -> Tensor:
    """Ranks (tokens, experts), minus infinity in groups that aren't taken."""
    grouped = ranks.view(len(ranks), groups.count, -1)
    of_groups = grouped.topk(groups.ranks, -1).values.sum(-1)
    least = of_groups.topk(groups.taken, -1).values[:, -1:]
    return grouped.masked_fill((of_groups < least).unsqueeze(-1), -torch.inf).view_as(ranks)


def _have_the_greatest_ranks(experts: Tensor, ranks: Tensor) -> bool:
    least = ranks.gather(1, experts).amin(1)
    wanted = ranks.topk(experts.shape[1]).values[:, -1]
    greatest = ranks.where(ranks.isfinite(), 0).abs().amax(1)
    return bool((least >= wanted - _RANK_TOLERANCE * greatest).all())


# ------------------------------------------------------------------------------------ the experts


#: Which outputs of the first linear are the gate's, if there is one, and which are the up projection's.
_Halves = tuple[slice | None, slice]


def _candidates(
    module: Any,
    router: Router,
    first: ExpertLinears,
    down: ExpertLinears,
    activations: Mapping[str, Callable[[Tensor], Tensor]],
) -> Iterator[tuple[Experts, _Halves]]:
    """Every way to split and activate the stacked weights."""
    halves: list[_Halves] = [(None, slice(None))]
    if _stacked(module, "gate_up_proj") is not None:
        half = first.columns // 2
        cuts = [(slice(0, half), slice(half, None)), (slice(0, None, 2), slice(1, None, 2))]
        halves = [(gate, up) for one, other in cuts for gate, up in ((one, other), (other, one))]
    alpha, limit = (float(getattr(module, name, None) or 0) for name in ("alpha", "limit"))
    names = [*activations, *(["clamped_swiglu"] if alpha and limit else [])]
    for gate, up in halves:
        linears = None if gate is None else _rows(first, gate), _rows(first, up)
        for name in names:
            yield Experts(router, *linears, name, down, alpha, limit, shared=None, shared_gate=None), (gate, up)


def _linear(module: Any, name: str) -> ExpertLinears | None:
    weight = _stacked(module, name)
    if weight is None:
        return None
    if isinstance(weight, Tensor) and getattr(module, "is_transposed", False):
        weight = weight.transpose(1, 2)
    return ExpertLinears(weight, _bias(module, f"{name}_bias"))


def _bias(module: Any, name: str) -> Tensor | None:
    bias = getattr(module, name, None)
    return bias.data if isinstance(bias, Tensor) else None


def _rows(linear: ExpertLinears, rows: slice) -> ExpertLinears:
    weight = linear.weight.rows(rows) if isinstance(linear.weight, ExpertStack) else linear.weight[:, rows]
    return ExpertLinears(weight, None if linear.bias is None else linear.bias[:, rows])


@dataclass(frozen=True)
class _ExpertTerm:
    """An expert's term in a token's result: its weight, its first linear's result, its second linear. All fp32."""

    weight: Tensor
    first: Tensor
    down: Linear


def _terms(first: ExpertLinears, down: ExpertLinears, assignment: Assignment) -> list[list[_ExpertTerm]]:
    """The terms of each of the first `_TRIED` tokens."""

    def one(linear: ExpertLinears, expert: int) -> Linear:
        return Linear(linear.weight[expert].float(), None if linear.bias is None else linear.bias[expert].float())

    def term(expert: int, weight: Tensor, x: Tensor) -> _ExpertTerm:
        return _ExpertTerm(weight, _product(one(first, expert), x), one(down, expert))

    return [
        [term(expert, weight, x) for expert, weight in zip(row.tolist(), weights.float(), strict=True)]
        for x, row, weights in zip(assignment.x.float()[:_TRIED], assignment.experts, assignment.weights, strict=False)
    ]


def _product(linear: Linear, x: Tensor) -> Tensor:
    """x (in, ...) to (out, ...)"""
    made = linear.numbers @ x
    return made if linear.bias is None else made + linear.bias.view(-1, *[1] * (x.dim() - 1))


def _results(
    candidates: Sequence[tuple[Experts, _Halves]],
    terms: list[list[_ExpertTerm]],
    activations: Mapping[str, Callable[[Tensor], Tensor]],
) -> Tensor:
    """The first tokens' result of each candidate, (tokens, width, candidates) fp32."""

    def inner(experts: Experts, halves: _Halves, made: Tensor) -> Tensor:
        gate, up = halves
        if gate is None:
            return activations[experts.activation](made[up])
        if experts.activation == "clamped_swiglu":
            opened = made[gate].clamp(max=experts.limit)
            return (made[up].clamp(-experts.limit, experts.limit) + 1) * opened * torch.sigmoid(experts.alpha * opened)
        return activations[experts.activation](made[gate]) * made[up]

    def result(term: _ExpertTerm) -> Tensor:
        inners = torch.stack([inner(*candidate, term.first) for candidate in candidates], 1)
        return term.weight * _product(term.down, inners)

    return torch.stack([torch.stack([result(term) for term in row]).sum(0) for row in terms])
