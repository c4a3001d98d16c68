"""Reads an MLP from what its linears were given and made. Runs in the engine process, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from ..coded_linear import halves
from .near import distance, same
from .recipe import Linear, Mlp, NotUnderstoodError
from .watch import Event

FUNCTIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "silu": nn.functional.silu,
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "gelu": nn.functional.gelu,
    "quick_gelu": lambda x: x * (1.702 * x).sigmoid(),
    "relu": nn.functional.relu,
    "relu_squared": lambda x: nn.functional.relu(x).square(),
}


def read_mlp(
    linears: list[tuple[Event, Linear]],
    near: Callable[[Tensor, Tensor], bool] = same,
    factors: Sequence[float] = (1.0,),
) -> tuple[Mlp, Tensor, Tensor]:
    """(the MLP, its input, its result)

    Args:
        near: whether what an activation makes is what was seen.
        factors: what may multiply that which is activated.

    Raises:
        NotUnderstoodError: they are something else.
    """
    if len(linears) not in (2, 3):
        raise NotUnderstoodError(f"an MLP of {len(linears)} linears")
    *first, (down_event, down) = linears
    x = first[0][0].x
    if any(not torch.equal(event.x, x) for event, _ in first):
        raise NotUnderstoodError("the MLP's linears read different things")
    made = [event.result.float() for event, _ in first]
    weights = [linear for _, linear in first]
    wanted = down_event.x
    choices: list[tuple[Linear | None, Linear, Tensor, Tensor | float]] = []
    if len(first) == 2:
        choices = [(weights[0], weights[1], made[0], made[1]), (weights[1], weights[0], made[1], made[0])]
    else:
        choices = [(None, weights[0], made[0], 1.0)]
        if made[0].shape[-1] == 2 * wanted.shape[-1]:
            bias = weights[0].bias
            biases = (None, None) if bias is None else bias.chunk(2)
            one, other = (Linear(*each) for each in zip(halves(weights[0].weight), biases, strict=True))
            first_made, second_made = made[0].chunk(2, -1)
            choices = [(one, other, first_made, second_made), (other, one, second_made, first_made)]
    # The nearest, not the first that is near: two kinds of GELU differ by less than the rounding of bf16.
    tried = [
        (function(times * inner) * beside, gate, up, name, times)
        for gate, up, inner, beside in choices
        for name, function in FUNCTIONS.items()
        for times in factors
        if inner.shape == wanted.shape
    ]
    if tried:
        explained, gate, up, name, times = min(tried, key=lambda one: distance(one[0], wanted))
        if near(explained, wanted):
            if times != 1:
                gate, up = (None, up.times(times)) if gate is None else (gate.times(times), up)
            return Mlp(gate, up, name, down), x, down_event.result
    raise NotUnderstoodError("an unknown activation in the MLP")
