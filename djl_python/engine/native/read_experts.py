"""Reads one layer's mixture of experts: the router and the experts' weights. Runs in the engine process, once.

transformers keeps the experts of a layer in one module, as stacked weights, and gives it each token's choice. What the
choice is made of is found by trying: the model's own choices and weights have to come out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from .near import distance, factor_of, rounded, same
from .recipe import Experts, Linear, NotUnderstoodError, Router
from .watch import Event

_TRIED: Final = 2  # tokens that the experts' weights are tried on
_SLACK: Final = 2e-2  # of the greatest rank; bf16 decides otherwise between experts that are as good as equal


@dataclass(frozen=True)
class _Choice:
    """What the experts were given: x (tokens, width), and for each token its experts and what they count."""

    x: Tensor
    experts: Tensor
    weights: Tensor


def experts_event(events: Sequence[Event]) -> Event | None:
    """The call of the module that holds a layer's experts, if it has any."""
    return next((event for event in events if _stacked(event.module, "down_proj") is not None), None)


def router_event(events: Sequence[Event], experts: Event) -> Event:
    """The call of the module that has a row of weights for each expert, and reads what the experts read.

    Raises:
        NotUnderstoodError: there is none.
    """
    count = len(experts.module.down_proj)
    x = _choice(experts).x
    for event in events:
        weight = getattr(event.module, "weight", None)
        if isinstance(weight, Tensor) and weight.shape == (count, x.shape[1]) and same(event.x, x):
            return event
    raise NotUnderstoodError("experts without a router")


def read_experts(
    experts: Event, router: Event, activations: Mapping[str, Callable[[Tensor], Tensor]]
) -> tuple[Experts, Tensor, Tensor]:
    """(the experts without a shared MLP, their input (tokens, width), their result).

    Raises:
        NotUnderstoodError: the choice or the experts could not be explained.
    """
    choice = _choice(experts)
    chosen_by = _read_router(router, choice)
    result = experts.result.reshape(choice.x.shape)
    tried = [
        (distance(made, result[:_TRIED]), found)
        for found in _arrangements(experts.module, chosen_by, activations)
        if same(made := _run(found, activations, choice), result[:_TRIED])
    ]
    if not tried:
        raise NotUnderstoodError("the experts compute something unknown")
    return min(tried, key=lambda pair: pair[0])[1], choice.x, result


def _choice(event: Event) -> _Choice:
    given = [value for value in (*event.given, *event.keywords.values()) if isinstance(value, Tensor)]
    experts = next((value for value in given if not value.is_floating_point()), None)
    numbers = [value for value in given if value.is_floating_point()]
    if experts is None or len(numbers) != 2 or numbers[1].shape != experts.shape:
        raise NotUnderstoodError("experts are not given each token's choice")
    x = numbers[0].reshape(-1, numbers[0].shape[-1])
    return _Choice(x, experts.reshape(len(x), -1), numbers[1].reshape(len(x), -1))


def _stacked(module: Any, name: str) -> Tensor | None:
    weight = getattr(module, name, None)
    return weight.data if isinstance(weight, Tensor) and weight.dim() == 3 else None


# ------------------------------------------------------------------------------------ the choice


def _read_router(event: Event, choice: _Choice) -> Router:
    module = event.module
    linear = Linear(module.weight.data, _bias(module, "bias"))
    scores = choice.x.float() @ linear.numbers.float().T
    if linear.bias is not None:
        scores = scores + linear.bias.float()
    found: list[tuple[tuple[bool, bool, float], Router]] = []
    for function, values in (("softmax", scores.softmax(-1)), ("sigmoid", scores.sigmoid())):
        taken = values.gather(1, choice.experts)
        for correction in (*_corrections(module, len(linear.weight)), None):
            ranks = values if correction is None else values + correction
            if not _are_the_greatest(choice.experts, ranks):
                continue
            for normalized in (False, True):
                made = taken / taken.sum(-1, keepdim=True) if normalized else taken
                factor = rounded(factor_of(made, choice.weights))
                if same(made * factor, choice.weights):
                    # A correction that is there is used; a factor is the less likely explanation.
                    order = (correction is None, factor != 1.0, distance(made * factor, choice.weights))
                    chosen = choice.experts.shape[1]
                    found.append((order, Router(linear, chosen, function, correction, normalized, factor)))
    if not found:
        raise NotUnderstoodError("experts are chosen in an unknown way")
    return min(found, key=lambda pair: pair[0])[1]


def _corrections(module: Any, count: int) -> Iterator[Tensor]:
    for part in module.modules():
        for name, tensor in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)):
            if tensor.numel() == count and tensor.is_floating_point() and name != "bias":
                yield tensor.data.float().reshape(-1)


def _are_the_greatest(experts: Tensor, ranks: Tensor) -> bool:
    least = ranks.gather(1, experts).amin(1)
    wanted = ranks.topk(experts.shape[1]).values[:, -1]
    return bool((least >= wanted - _SLACK * ranks.abs().amax(1)).all())


# ------------------------------------------------------------------------------------ the experts


def _arrangements(
    module: Any, router: Router, activations: Mapping[str, Callable[[Tensor], Tensor]]
) -> Iterator[Experts]:
    """What the stacked weights could mean."""
    down = _linear(module, "down_proj")
    if (both := _linear(module, "gate_up_proj")) is None:
        if down is None or (up := _linear(module, "up_proj")) is None:
            return
        pairs: list[tuple[Linear | None, Linear]] = [(None, up)]
    else:
        half = both.weight.shape[1] // 2
        cuts = [(slice(0, half), slice(half, None)), (slice(0, None, 2), slice(1, None, 2))]
        pairs = [
            (_rows(both, gate), _rows(both, up))
            for first, second in cuts
            for gate, up in ((first, second), (second, first))
        ]
    alpha, limit = (float(getattr(module, name, None) or 0) for name in ("alpha", "limit"))
    names = [*activations, *(["clamped_swiglu"] if alpha and limit else [])]
    assert down is not None
    for gate, up in pairs:
        for name in names:
            yield Experts(router, gate, up, name, down, alpha, limit, shared=None, shared_gate=None)


def _linear(module: Any, name: str) -> Linear | None:
    """Stacked weights as (experts, out, in)."""
    weight = _stacked(module, name)
    if weight is None:
        return None
    weight = weight.transpose(1, 2) if getattr(module, "is_transposed", False) else weight
    return Linear(weight, _bias(module, f"{name}_bias"))


def _bias(module: Any, name: str) -> Tensor | None:
    bias = getattr(module, name, None)
    return bias.data if isinstance(bias, Tensor) else None


def _rows(linear: Linear, rows: slice) -> Linear:
    return Linear(linear.numbers[:, rows], None if linear.bias is None else linear.bias[:, rows])


def _run(experts: Experts, activations: Mapping[str, Callable[[Tensor], Tensor]], choice: _Choice) -> Tensor:
    """The first tokens' result, (tokens, width) fp32."""

    def product(linear: Linear, expert: int, x: Tensor) -> Tensor:
        made = linear.numbers[expert].float() @ x
        return made if linear.bias is None else made + linear.bias[expert].float()

    def mlp(expert: int, x: Tensor) -> Tensor:
        up = product(experts.up, expert, x)
        if experts.gate is None:
            inner = activations[experts.activation](up)
        elif experts.activation == "clamped_swiglu":
            gate = product(experts.gate, expert, x).clamp(max=experts.limit)
            inner = (up.clamp(-experts.limit, experts.limit) + 1) * gate * torch.sigmoid(experts.alpha * gate)
        else:
            inner = activations[experts.activation](product(experts.gate, expert, x)) * up
        return product(experts.down, expert, inner)

    return torch.stack(
        [
            sum((w * mlp(e, x) for e, w in zip(row.tolist(), weights.float(), strict=True)), torch.zeros_like(x))
            for x, row, weights in zip(choice.x.float()[:_TRIED], choice.experts, choice.weights, strict=False)
        ]
    )
