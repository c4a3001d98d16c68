"""Explains the computation from the last layer's result to the logits. Runs in the engine process, at load."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...checkpoints.linears import Linear, as_linear
from ..comparison import factor_of, rounded_factor, same
from ..recipe.primitives import Norm, NotUnderstoodError
from ..watching.copies import Copy
from ..watching.run import WatchedRun
from .layer_record import linear_call_of
from .norms import norm_call


@dataclass(frozen=True)
class OutputHead:
    """softcap(scale * linear(projection(norm(x)))); see `Recipe`, which has these fields."""

    norm: Norm | None
    projection: Linear | None
    linear: Linear
    scale: float
    softcap: float


def read_head(copy: Copy, seen: WatchedRun) -> OutputHead:
    """How the logits are made.

    Raises:
        NotUnderstoodError: it could not be explained.
    """
    end = seen.layers[-1].result
    readers = (call for call in seen.module_calls if isinstance(call.x, Tensor) and call.x.shape == end.shape)
    norm = next((n for call in readers if torch.equal(call.x, end) and (n := norm_call(call)) is not None), None)
    hidden = end if norm is None else norm.call.result
    narrowed = linear_call_of(seen.module_calls[seen.layers[-1].module_calls.stop : -1], hidden)
    if narrowed is not None:
        hidden = narrowed[0].result
    call = seen.module_calls[-1]
    linear = as_linear(call.module)
    unscaled = torch.equal(call.x, hidden.to(call.x.dtype))
    input_scale = 1.0 if unscaled else factor_of(hidden, call.x)
    if linear is None or not (unscaled or same(input_scale * hidden, call.x)):
        raise NotUnderstoodError("the logits are not a linear of the last layer's normed result")
    made = call.result[0].float()
    scale = rounded_factor(factor_of(made, seen.logits))
    # A soft cap does not show in its result, so it is read from the configuration.
    softcap = float(getattr(copy.model.config.get_text_config(decoder=True), "final_logit_softcapping", None) or 0)
    if softcap and same(torch.tanh(made / softcap) * softcap, seen.logits):
        scale = 1.0
    elif same(made * scale, seen.logits):
        softcap = 0.0
    else:
        raise NotUnderstoodError("the logits are changed in an unknown way")
    assert math.isfinite(scale)
    return OutputHead(
        norm=None if norm is None else norm.norm,
        projection=None if narrowed is None else narrowed[1],
        linear=linear,
        scale=input_scale * scale,
        softcap=softcap,
    )
