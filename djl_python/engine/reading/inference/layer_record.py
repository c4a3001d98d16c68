"""The record of one watched layer, and simple questions about it. Runs in the engine process, at load."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...checkpoints.linears import Linear, as_linear
from ..comparison import factor_of, rounded_factor, same
from ..recipe.primitives import Norm, NotUnderstoodError
from ..watching.run import ModuleCall, WatchedRun
from .norms import NormCall, norm_call


@dataclass(frozen=True)
class ScaledNormCall(NormCall):
    """A norm whose result is multiplied by a factor."""

    factor: float

    def _of(self, module: Any) -> Norm:
        norm = super()._of(module)
        bias = None if norm.bias is None else norm.bias * self.factor
        return Norm(norm.kind, norm.weight * self.factor, bias, norm.eps)


@dataclass(frozen=True)
class Projections:
    """A mixer's linears: its input projections, which all read `input`, and the output projection of its result.

    Attributes:
        outputs: results of all input projections, side by side, (tokens, columns).
        inner: linears in between, which read something else.
        rest: the linears after the output projection.
    """

    input: Tensor
    linears: list[Linear]
    outputs: Tensor
    inner: list[tuple[ModuleCall, Linear]]
    output: Linear
    output_call: ModuleCall
    rest: list[tuple[ModuleCall, Linear]]


#: Whether a linear's input, (1, tokens, columns), is the mixer's result; the linears before it are given, too.
Takes = Callable[[Tensor, list[tuple[ModuleCall, Linear]]], bool]


class LayerRecord:
    """One layer's input and result, and its calls of modules, attention and functions, as recorded of a copy.

    Attributes:
        layer: the model's own; `copied` is the copy's.
        earlier: attention calls of the layers before.
        linears, norms: the calls of modules that are one.
    """

    def __init__(self, seen: WatchedRun, index: int) -> None:
        run = seen.layers[index]
        self.index = index
        self.layer, self.copied = run.layer, run.copied
        self.input, self.result = run.input, run.result
        self.attention_calls = seen.attention_calls[run.attention_calls]
        self.earlier = seen.attention_calls[: run.attention_calls.start]
        self.function_calls = seen.function_calls[run.function_calls]
        self.module_calls = seen.module_calls[run.module_calls]
        calls = [call for call in self.module_calls if isinstance(call.result, Tensor)]
        self.linears = [(call, linear) for call in calls if (linear := as_linear(call.module)) is not None]
        self.norms = [norm for call in calls if (norm := norm_call(call)) is not None]

    def only(self, **parts: Any) -> LayerRecord:
        """The record with some of its lists replaced."""
        other = copy.copy(self)
        vars(other).update(parts)
        return other

    @functools.cached_property
    def constants(self) -> list[float]:
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

    def own_numbers(self, seen: Tensor) -> Tensor:
        """The model's own numbers, fp32, for the copy's numbers in a function's argument.

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

    def norm_into(self, x: Tensor) -> NormCall | ScaledNormCall | None:
        """The norm whose result is x, or a multiple of x."""
        made = [norm for norm in self.norms if norm.call.result.shape == x.shape]
        if (exactly := next((n for n in made if torch.equal(n.call.result, x)), None)) or torch.equal(x, self.input):
            return exactly
        for norm in made:
            if torch.equal(norm.call.x, self.input):
                factor = rounded_factor(factor_of(norm.call.result, x), self.constants)
                if same(factor * norm.call.result, x):
                    return ScaledNormCall(norm.call, norm.kind, norm.offset, norm.eps, factor)
        return None

    def norm_to(self, x: Tensor) -> NormCall | None:
        """The norm within the layer whose result has x's numbers, in any shape."""
        made = (norm for norm in self.norms if norm.call.result.numel() == x.numel())
        return next((norm for norm in made if torch.equal(norm.call.result.reshape(x.shape), x)), None)

    def norm_of(self, x: Tensor) -> NormCall | None:
        """The norm whose input is x."""
        return next((n for n in self.norms if n.call.x.shape == x.shape and torch.equal(n.call.x, x)), None)

    def projections(self, takes: Takes, *, inner: bool = False) -> Projections:
        """The layer's linears, split at the output projection: the first one whose input is the mixer's result.

        Args:
            takes: recognizes the mixer's result.
            inner: linears before the output projection may read something else than the first.

        Raises:
            NotUnderstoodError: no linear takes the mixer's result, or those before it read different inputs.
        """
        split = next((i for i in range(1, len(self.linears)) if takes(self.linears[i][0].x, self.linears[:i])), None)
        if split is None:
            raise NotUnderstoodError("no linear takes what comes of mixing tokens")
        given, (call, output) = self.linears[0][0].x, self.linears[split]
        before = [pair for pair in self.linears[:split] if torch.equal(pair[0].x, given)]
        within = [pair for pair in self.linears[:split] if not torch.equal(pair[0].x, given)]
        if within and not inner:
            raise NotUnderstoodError(f"{len(within)} linears before that read something else")
        return Projections(
            input=given,
            linears=[linear for _, linear in before],
            outputs=side_by_side(before),
            inner=within,
            output=output,
            output_call=call,
            rest=self.linears[split + 1 :],
        )


def linear_call_of(calls: Sequence[ModuleCall], x: Tensor) -> tuple[ModuleCall, Linear] | None:
    """The linear among these calls whose input was x."""
    linears = ((call, linear) for call in calls if (linear := as_linear(call.module)) is not None)
    return next(((call, linear) for call, linear in linears if same(call.x, x)), None)


def side_by_side(linears: list[tuple[ModuleCall, Linear]]) -> Tensor:
    """Results of linears with the same input, side by side, (tokens, columns)."""
    return torch.cat([call.result[0] for call, _ in linears], -1)


def _decay(logarithm: Tensor) -> Tensor:
    """The decay rate (A) of a recurrent layer, whose parameter is its logarithm."""
    return -logarithm.float().exp()
