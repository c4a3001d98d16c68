"""Explains an MLP by the inputs and results of its linears. Runs in the engine process, at load."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from ...checkpoints.dequantizing_linear import halves
from ...checkpoints.linears import Linear
from ..comparison import distance, same
from ..recipe.activations import FUNCTIONS
from ..recipe.decoder import Mlp
from ..recipe.primitives import NotUnderstoodError
from ..watching.run import ModuleCall

_INPUTS: Final = 1001  # that an activation is run on, ...
_GREATEST_INPUT: Final = 8.0  # ... up to this on both sides of zero


def read_mlp(
    linears: list[tuple[ModuleCall, Linear]],
    factors: Sequence[float] = (1.0,),
    others: Sequence[ModuleCall] = (),
) -> tuple[Mlp, Tensor, Tensor]:
    """(the MLP, its input, its result)

    Args:
        factors: candidates for a factor on the activation's input.
        others: calls of modules, one of which may be the activation.

    Raises:
        NotUnderstoodError: the linears compute something else.
    """
    if len(linears) not in (2, 3):
        raise NotUnderstoodError(f"an MLP of {len(linears)} linears")
    *first, (down_call, down) = linears
    x = first[0][0].x
    if any(not torch.equal(call.x, x) for call, _ in first):
        raise NotUnderstoodError("the MLP's linears read different things")
    made = [call.result.float() for call, _ in first]
    weights = [linear for _, linear in first]
    wanted = down_call.x
    choices: list[tuple[Linear | None, Linear, Tensor, Tensor | float]] = []
    if len(first) == 2:
        choices = [(weights[0], weights[1], made[0], made[1]), (weights[1], weights[0], made[1], made[0])]
    else:
        choices = [(None, weights[0], made[0], 1.0)]
        if made[0].shape[-1] == 2 * wanted.shape[-1]:
            bias = weights[0].bias
            biases = (None, None) if bias is None else bias.chunk(2)
            one, other = (Linear(*each) for each in zip(halves(weights[0].weight), biases, strict=True))
            if (origins := weights[0].origins) is not None:
                one.origins, other.origins = (origins.take(rows) for rows in torch.arange(len(origins.rows)).chunk(2))
            first_made, second_made = made[0].chunk(2, -1)
            choices = [(one, other, first_made, second_made), (other, one, second_made, first_made)]
    tried = [
        (function(times * inner) * beside, gate, up, name, times)
        for gate, up, inner, beside in choices
        for name, function in FUNCTIONS.items()
        for times in factors
        if inner.shape == wanted.shape
    ]
    if tried:
        explained, gate, up, name, times = min(tried, key=lambda attempt: distance(attempt[0], wanted))
        if same(explained, wanted):
            if times != 1:
                gate, up = (None, up.times(times)) if gate is None else (gate.times(times), up)
            return Mlp(gate, up, name, down), x, down_call.result
    if len(choices) == 1 and (curves := _curves(others, first[0][0].result, wanted)) is not None:
        copied, curve = curves
        if same(_curve_terms(made[0]) @ torch.tensor(copied), wanted):
            return Mlp(None, weights[0], "xielu", down, curve), x, down_call.result
    raise NotUnderstoodError("an unknown activation in the MLP")


def _curve_terms(x: Tensor) -> Tensor:
    """x (...) to the terms of `Mlp.curve`, (..., 3); every layer has its own, learned factors for them."""
    low = x.clamp(max=0)
    return torch.stack([x.clamp(min=0).square(), torch.expm1(low) - low, x], -1)


_Curve = tuple[float, float, float]


def _curves(events: Sequence[ModuleCall], given: Tensor, made: Tensor) -> tuple[_Curve, _Curve] | None:
    """The activations, the copy's and the model's own, that map `given` to `made`; None: no activation does."""
    call = next((each for each in events if _equal(each.x, given) and _equal(each.result, made)), None)
    if call is None:
        return None
    copied, own = _curve(call.copied), _curve(call.module)
    return None if copied is None or own is None else (copied, own)


def _curve(module: nn.Module) -> _Curve | None:
    """The factors of a module's curve, from its results for other inputs; None if it has another."""
    x = torch.linspace(-_GREATEST_INPUT, _GREATEST_INPUT, _INPUTS)
    results, terms = copy.deepcopy(module).float()(x), _curve_terms(x.double())
    factors = torch.linalg.lstsq(terms, results.double()[:, None]).solution[:, 0]
    if not same(terms @ factors, results):
        return None
    square, low, straight = factors.tolist()
    return square, low, straight


def _equal(one: Any, other: Tensor) -> bool:
    return isinstance(one, Tensor) and one.shape == other.shape and torch.equal(one, other)
