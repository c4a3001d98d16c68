"""The record of one watched layer, as the `read_*` modules use it. Runs in the engine process, once."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .near import factor_of, same
from .parts import as_linear, as_norm
from .recipe_parts import Linear, Norm, NotUnderstoodError
from .watch import Event, Watched


@dataclass(frozen=True)
class Projected:
    """A mixer's input projections, which all read `given`, and the output projection, which takes its result.

    Args:
        made: results of all input projections, side by side, (tokens, columns).
        within: linears in between, which read something else.
        rest: the linears after the output projection.
    """

    given: Tensor
    linears: list[Linear]
    made: Tensor
    within: list[tuple[Event, Linear]]
    output: Linear
    output_event: Event
    rest: list[tuple[Event, Linear]]


#: Whether a linear's input, (1, tokens, columns), is the mixer's result; the linears before it are given, too.
Takes = Callable[[Tensor, list[tuple[Event, Linear]]], bool]


class LayerReader:
    """One layer's input and result, and its module, attention and function calls."""

    def __init__(self, seen: Watched, index: int) -> None:
        span = seen.spans[index]
        self.index = index
        self.layer = span.layer
        self.given, self.result = span.given, span.result
        self.calls = seen.calls[span.calls]
        self.earlier = seen.calls[: span.calls.start]
        self.called = seen.called[span.called]
        self.events = seen.events[span.events]
        events = [e for e in self.events if isinstance(e.result, Tensor)]
        self.linears = [(e, linear) for e in events if (linear := as_linear(e.module)) is not None]
        self.norms = [(e, norm) for e in events if (norm := as_norm(e)) is not None]

    def only(self, **parts: Any) -> LayerReader:
        """A copy with some of its lists replaced."""
        other = copy.copy(self)
        vars(other).update(parts)
        return other

    @functools.cached_property
    def numbers(self) -> list[float]:
        """1.0, and the other nonzero float attributes of the layer's modules."""
        own = {v for module in self.layer.modules() for v in vars(module).values() if isinstance(v, float) and v}
        return [1.0, *sorted(own - {1.0})]

    def norm_into(self, x: Tensor) -> tuple[Event, Norm] | None:
        """The norm whose result is x; if x is a multiple of the result, the weight and bias include the factor."""
        made = [(e, n) for e, n in self.norms if e.result.shape == x.shape]
        if (exactly := next(((e, n) for e, n in made if torch.equal(e.result, x)), None)) or torch.equal(x, self.given):
            return exactly
        for event, norm in made:
            if torch.equal(event.x, self.given) and same((factor := factor_of(event.result, x)) * event.result, x):
                bias = None if norm.bias is None else norm.bias * factor
                return event, Norm(norm.kind, norm.weight * factor, bias, norm.eps)
        return None

    def norm_to(self, x: Tensor) -> tuple[Event, Norm] | None:
        """The norm within the layer whose result has x's numbers, in any shape."""
        made = ((e, n) for e, n in self.norms if e.result.numel() == x.numel())
        return next(((e, n) for e, n in made if torch.equal(e.result.reshape(x.shape), x)), None)

    def norm_of(self, x: Tensor) -> tuple[Event, Norm] | None:
        """The norm whose input is x."""
        return next(((e, n) for e, n in self.norms if e.x.shape == x.shape and torch.equal(e.x, x)), None)

    def projected(self, takes: Takes, *, inner: bool = False) -> Projected:
        """The layer's linears, split at the output projection: the first one whose input is the mixer's result.

        Args:
            takes: recognizes the mixer's result.
            inner: linears before the output projection may read something else than the first.

        Raises:
            NotUnderstoodError: no linear takes the mixer's result, or those before it read different inputs.
        """
        place = next((i for i in range(1, len(self.linears)) if takes(self.linears[i][0].x, self.linears[:i])), None)
        if place is None:
            raise NotUnderstoodError("no linear takes what comes of mixing tokens")
        given, (event, output) = self.linears[0][0].x, self.linears[place]
        before = [pair for pair in self.linears[:place] if torch.equal(pair[0].x, given)]
        within = [pair for pair in self.linears[:place] if not torch.equal(pair[0].x, given)]
        if within and not inner:
            raise NotUnderstoodError(f"{len(within)} linears before that read something else")
        return Projected(
            given=given,
            linears=[linear for _, linear in before],
            made=made_by(before),
            within=within,
            output=output,
            output_event=event,
            rest=self.linears[place + 1 :],
        )


def made_by(linears: list[tuple[Event, Linear]]) -> Tensor:
    """Results of linears with the same input, side by side, (tokens, columns)."""
    return torch.cat([event.result[0] for event, _ in linears], -1)
