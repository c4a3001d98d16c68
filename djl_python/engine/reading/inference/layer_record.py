"""The record of one watched layer, as the `read_*` modules use it. Runs in the engine process, once."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..comparison import factor_of, same, settled
from ..linears import as_linear
from ..recipe.primitives import Linear, Norm, NotUnderstoodError
from ..watching.run import Event, Watched
from .norms import SeenNorm, seen_norm


@dataclass(frozen=True)
class ScaledNorm(SeenNorm):
    """A norm whose result is multiplied by a factor."""

    factor: float

    def _of(self, module: Any) -> Norm:
        norm = super()._of(module)
        bias = None if norm.bias is None else norm.bias * self.factor
        return Norm(norm.kind, norm.weight * self.factor, bias, norm.eps)


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
    """One layer's input and result, and its module, attention and function calls, as recorded of a copy.

    Attributes:
        layer: the model's own, `copied` the copy's.
    """

    def __init__(self, seen: Watched, index: int) -> None:
        span = seen.spans[index]
        self.index = index
        self.layer, self.copied = span.layer, span.copied
        self.given, self.result = span.given, span.result
        self.calls = seen.calls[span.calls]
        self.earlier = seen.calls[: span.calls.start]
        self.called = seen.called[span.called]
        self.events = seen.events[span.events]
        events = [e for e in self.events if isinstance(e.result, Tensor)]
        self.linears = [(e, linear) for e in events if (linear := as_linear(e.module)) is not None]
        self.norms = [norm for e in events if (norm := seen_norm(e)) is not None]

    def only(self, **parts: Any) -> LayerReader:
        """A copy with some of its lists replaced."""
        other = copy.copy(self)
        vars(other).update(parts)
        return other

    @functools.cached_property
    def numbers(self) -> list[float]:
        """1.0, and the other nonzero numbers that the layer's modules have as attributes or buffers."""
        own = {v for module in self.layer.modules() for v in vars(module).values() if isinstance(v, float) and v}
        own |= {each.item() for each in self.layer.buffers() if each.numel() == 1 and each.is_floating_point()}
        return [1.0, *sorted(own - {0.0, 1.0})]

    def parameters(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(numbers of the copy, the model's own) of each of the layer's parameters."""
        for module, original in zip(self.copied.modules(), self.layer.modules(), strict=True):
            own = dict(original.named_parameters(recurse=False))
            for name, copied in module.named_parameters(recurse=False):
                if name in own:  # the weight of a linear of codes is no parameter
                    yield copied.data, own[name].data

    def own(self, seen: Tensor) -> Tensor:
        """The model's own numbers, fp32, in the place of those of the copy that a function was given.

        Raises:
            NotUnderstoodError: they are no parameter of the layer, reshaped or not, and not -exp of one.
        """
        for change in (torch.Tensor.float, _decay):
            for copied, own in self.parameters():
                if copied.numel() == seen.numel() and torch.equal(change(copied).reshape(-1), seen.float().reshape(-1)):
                    return change(own).reshape(seen.shape)
        for buffer in self.layer.buffers():
            if buffer.numel() == seen.numel() and torch.equal(buffer.float().reshape(-1), seen.float().reshape(-1)):
                return buffer.float().reshape(seen.shape)
        raise NotUnderstoodError("numbers that are none of the layer's parameters")

    def norm_into(self, x: Tensor) -> SeenNorm | ScaledNorm | None:
        """The norm whose result is x, or a multiple of x."""
        made = [norm for norm in self.norms if norm.event.result.shape == x.shape]
        if (exactly := next((n for n in made if torch.equal(n.event.result, x)), None)) or torch.equal(x, self.given):
            return exactly
        for norm in made:
            if torch.equal(norm.event.x, self.given):
                factor = settled(factor_of(norm.event.result, x), self.numbers)
                if same(factor * norm.event.result, x):
                    return ScaledNorm(norm.event, norm.kind, norm.offset, norm.eps, factor)
        return None

    def norm_to(self, x: Tensor) -> SeenNorm | None:
        """The norm within the layer whose result has x's numbers, in any shape."""
        made = (norm for norm in self.norms if norm.event.result.numel() == x.numel())
        return next((norm for norm in made if torch.equal(norm.event.result.reshape(x.shape), x)), None)

    def norm_of(self, x: Tensor) -> SeenNorm | None:
        """The norm whose input is x."""
        return next((n for n in self.norms if n.event.x.shape == x.shape and torch.equal(n.event.x, x)), None)

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


def _decay(logarithm: Tensor) -> Tensor:
    """What recurrent layers decay by, of the parameter that they keep of it."""
    return -logarithm.float().exp()
