"""Activation functions that recipes name, as torch computes them. Runs in the engine process, at load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torch import Tensor, nn

FUNCTIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "silu": nn.functional.silu,
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "gelu": nn.functional.gelu,
    "quick_gelu": lambda x: x * (1.702 * x).sigmoid(),
    "relu": nn.functional.relu,
    "relu_squared": lambda x: nn.functional.relu(x).square(),
}
