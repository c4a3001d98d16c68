"""The parts that every layer is made of, recognized by what they did. Runs in the engine process, once."""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor, nn

from .recipe import Linear, Norm
from .watch import Event

# Relative; bf16 rounds to 1/256. What is to be told apart differs by far more.
_TOLERANCE: Final = 2e-2


def same(a: Tensor, b: Tensor) -> bool:
    """Equal up to the rounding of the model's own format."""
    if a.numel() != b.numel():
        return False
    a, b = a.reshape(-1).float(), b.reshape(-1).float()
    return bool((a - b).norm() <= _TOLERANCE * b.norm() + 1e-6)


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.float() - b.float()).norm())


def factor_of(part: Tensor, whole: Tensor) -> float:
    """The number s for which s * part is nearest to whole."""
    part, whole = part.reshape(-1).double(), whole.reshape(-1).double()
    return float(part @ whole / (part @ part).clamp_min(1e-30))


def rounded(factor: float) -> float:
    return 1.0 if abs(factor - 1) < 1e-2 else factor


def as_linear(module: Any) -> Linear | None:
    if isinstance(module, nn.Linear):
        return Linear(module.weight.data, None if module.bias is None else module.bias.data)
    if type(module).__name__ == "Conv1D":  # GPT-2's linear, transposed
        return Linear(module.weight.data.T, module.bias.data)
    return None


def as_norm(event: Event) -> Norm | None:
    """A norm, recognized by what it did to its input."""
    weight = getattr(event.module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 1 or not isinstance(event.result, Tensor):
        return None
    x = event.x.float()
    bias = getattr(event.module, "bias", None)
    shift = bias.data.float() if isinstance(bias, Tensor) else None
    eps = next(
        (v for k in ("variance_epsilon", "eps", "norm_eps") if isinstance(v := getattr(event.module, k, None), float)),
        1e-6,
    )
    if x.shape[-1] != len(weight):
        return None
    rms = x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
    centred = nn.functional.layer_norm(x, (x.shape[-1],), eps=eps)
    for kind, normal in (("rms", rms), ("layer", centred)):
        for scale in (weight.data.float(), weight.data.float() + 1):
            if same(normal * scale + (0 if shift is None else shift), event.result):
                return Norm(kind, scale, shift, eps)
    return None
