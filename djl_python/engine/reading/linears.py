"""Recognizes modules that compute a linear function. Runs in the engine process, at load."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from ..checkpoints.dequantizing_linear import DequantizingLinear
from .call_errors import CALL_ERRORS
from .recipe.primitives import Linear

_linear: Final[dict[type[nn.Linear], bool]] = {}  # by class, as far as tried: whether it computes a plain linear


def as_linear(module: Any) -> Linear | None:
    if isinstance(module, DequantizingLinear):
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
        except CALL_ERRORS:  # it takes other inputs
            _linear[type(module)] = False
    return _linear[type(module)]
