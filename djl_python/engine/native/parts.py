"""Recognizes the linears and norms that layers are made of, by what they did. Runs in the engine process, once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..coded_linear import CodedLinear
from ..misfits import MISFITS
from .near import distance, same
from .recipe_parts import Linear, Norm
from .watch import Event

_USUAL_EPSILONS: Final = (1e-5, 1e-6)
_linear: Final[dict[type[nn.Linear], bool]] = {}  # by class, as far as tried: whether it computes a plain linear


def places_in(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """(parent, name, module) of every module in the model, also if modules are replaced during the iteration."""
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            yield parent, name, module


def as_linear(module: Any) -> Linear | None:
    if isinstance(module, CodedLinear):
        return Linear(module.weight, None if module.bias is None else module.bias.data)
    if isinstance(module, nn.Linear) and (type(module).forward is nn.Linear.forward or _is_linear(module)):
        return Linear(module.weight.data, None if module.bias is None else module.bias.data)
    if type(module).__name__ == "Conv1D":  # GPT-2's linear, transposed
        return Linear(module.weight.data.T, module.bias.data)
    return None


def _is_linear(module: nn.Linear) -> bool:
    """Whether a subclass of `nn.Linear` computes the same, judged by its first instance; routers don't."""
    if type(module) not in _linear:
        x = torch.eye(2, module.in_features, dtype=module.weight.dtype, device=module.weight.device)
        try:
            made = nn.Module.__call__(module, x)
            _linear[type(module)] = isinstance(made, Tensor) and torch.equal(made, nn.Linear.forward(module, x))
        except MISFITS:  # it takes other inputs
            _linear[type(module)] = False
    return _linear[type(module)]


def rms(x: Tensor, norm: Norm) -> Tensor:
    """RMSNorm of x (..., columns) fp32, without a bias."""
    return x * (x.pow(2).mean(-1, keepdim=True) + norm.eps).rsqrt() * norm.weight


def as_norm(event: Event) -> Norm | None:
    """The norm that an event is, recognized by its result; it may have no weight, and its epsilon no known name."""
    x, made, module = event.x, event.result, event.module
    if not isinstance(made, Tensor) or not isinstance(x, Tensor) or x.shape != made.shape or not x.is_floating_point():
        return None
    x = x.float()
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if weight is None and not same(x, made):
        weight = torch.ones(x.shape[-1])
    if not isinstance(weight, Tensor) or weight.shape != x.shape[-1:]:
        return None
    shift = bias.data.float() if isinstance(bias, Tensor) else None
    named = [v for k in ("variance_epsilon", "eps", "norm_eps") if isinstance(v := getattr(module, k, None), float)]
    found: Norm | None = None
    nearest = math.inf
    for eps in named[:1] or _USUAL_EPSILONS:
        scaled = x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
        centred = nn.functional.layer_norm(x, x.shape[-1:], eps=eps)
        for kind, normal in (("rms", scaled), ("layer", centred)):
            for scale in (weight.data.float(), weight.data.float() + 1):
                result = normal * scale + (0 if shift is None else shift)
                if same(result, made) and distance(result, made) < nearest:
                    found, nearest = Norm(kind, scale, shift, eps), distance(result, made)
    return found
