"""Recognizes norms by their results for random numbers. Runs in the engine process, at load."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..comparison import distance, same
from ..recipe.mixers import GatedNorm
from ..recipe.primitives import Norm
from ..watching.run import ModuleCall

_EPSILONS: Final = ("variance_epsilon", "eps", "norm_eps")
_USUAL_EPSILONS: Final = (1e-5, 1e-6)
_GROUPS: Final = ("n_groups", "num_groups")


@dataclass(frozen=True)
class NormCall:
    """A call of a norm: the copy's record, and how the module's weight multiplies.

    Attributes:
        offset: added to the weight.
    """

    call: ModuleCall
    kind: str
    offset: float
    eps: float

    @property
    def norm(self) -> Norm:
        """With the model's own weight."""
        return self._of(self.call.module)

    @property
    def copied(self) -> Norm:
        """With the copy's weight."""
        return self._of(self.call.copied)

    def _of(self, module: Any) -> Norm:
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        return Norm(
            self.kind,
            torch.ones(self.call.x.shape[-1]) if weight is None else weight.data.float() + self.offset,
            bias.data.float() if isinstance(bias, Tensor) else None,
            self.eps,
        )


def norm_call(call: ModuleCall) -> NormCall | None:
    """The norm that a module's call is, if it is one; it may have no weight, and its epsilon no known name."""
    x, made, module = call.x, call.result, call.copied
    if not isinstance(made, Tensor) or not isinstance(x, Tensor) or x.shape != made.shape or not x.is_floating_point():
        return None
    weight = getattr(module, "weight", None)
    if weight is None and same(x, made):
        return None
    if weight is not None and (not isinstance(weight, Tensor) or weight.shape != x.shape[-1:]):
        return None
    best, nearest = None, math.inf
    for eps in list(_named(module))[:1] or _USUAL_EPSILONS:
        for kind in ("rms", "layer"):
            for offset in (0.0,) if weight is None else (0.0, 1.0):
                likely = NormCall(call, kind, offset, eps)
                result = normed(x, likely.copied)
                if same(result, made) and (off := distance(result, made)) < nearest:
                    best, nearest = likely, off
    return best


def normed(x: Tensor, norm: Norm) -> Tensor:
    """x (..., columns) through a norm, fp32."""
    x = x.float()
    if norm.kind == "layer":
        x = x - x.mean(-1, keepdim=True)
    made = x * (x.square().mean(-1, keepdim=True) + norm.eps).rsqrt() * norm.weight
    return made if norm.bias is None else made + norm.bias


def gated_norm_candidates(module: Any) -> Iterator[GatedNorm]:
    """The norms that a module with a `weight` may be, the same ones in the same order for a copy of it."""
    weight = module.weight.data.float()
    bias = module.bias.data.float().contiguous() if isinstance(getattr(module, "bias", None), Tensor) else None
    eps = next(_named(module), 1e-6)
    groups = next((value for name in _GROUPS if isinstance(value := getattr(module, name, None), int)), 1)
    size = getattr(module, "group_size", None)
    widths = dict.fromkeys((len(weight), len(weight) // groups, size if isinstance(size, int) else len(weight)))
    for kind in ("rms", "layer"):
        for scale in (weight.contiguous(), weight + 1):
            for width in widths:
                for gate_first in (False, True):
                    yield GatedNorm(Norm(kind, scale, bias, eps), width, gate_first)


def gated_and_normed(x: Tensor, gate: Tensor | None, gated: GatedNorm) -> Tensor:
    """x (..., columns) through a norm, fp32, multiplied by silu of a gate if there is one."""
    norm, opening = gated.norm, 1.0 if gate is None else nn.functional.silu(gate.float())
    entering = x.float() * opening if gated.gate_first else x.float()
    width = gated.width
    plain = Norm(norm.kind, torch.ones(width), None, norm.eps)
    made = normed(entering.reshape(*x.shape[:-1], -1, width), plain).reshape(x.shape) * norm.weight
    if norm.bias is not None:
        made = made + norm.bias
    return made if gated.gate_first else made * opening


def _named(module: Any) -> Iterator[float]:
    return (value for name in _EPSILONS if isinstance(value := getattr(module, name, None), float))
