"""Kernels in place of functions that transformers' modules call by name. Runs in the engine process.

transformers keeps computations for which special kernels exist in functions of a modeling file, with plain torch as a
fallback. Here a kernel replaces such a function while a model runs, if both give the same results for random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
from torch import Tensor

from ...call_errors import CALL_ERRORS
from ...reading.watching.functions import CONVOLUTION, DELTA_RULE, files_of
from ..thread_pool import ThreadPool
from . import causal_conv, delta_rule

Function = Callable[..., Any]

#: By name: the maker of the native function, which falls back to the given one; a function that calls either with test
#: inputs.
_KNOWN: Final[Mapping[str, tuple[Callable[[Function, ThreadPool], Function], Callable[[Function], list[Tensor]]]]] = {
    DELTA_RULE: (delta_rule.native, delta_rule.tried),
    "torch_recurrent_gated_delta_rule": (delta_rule.native, delta_rule.tried),
    CONVOLUTION: (causal_conv.native, causal_conv.tried),
    "causal_conv1d_update": (causal_conv.native_update, causal_conv.tried_update),
}
# Relative: rounding errors where a state adds up earlier tokens. Other functions are much further away.
_TOLERANCE: Final = 1e-3


class StandIns:
    """The functions in the files of a model's modules that kernels can replace."""

    def __init__(self, model: Any, pool: ThreadPool) -> None:
        self.places = [
            (file, name, native)
            for file in files_of(model)
            for name, (make, tried) in _KNOWN.items()
            if (own := getattr(file, name, None)) is not None and _agree(tried, own, native := make(own, pool))
        ]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Context in which the kernels replace the files' functions."""
        with ExitStack() as stack:
            for file, name, native in self.places:
                stack.callback(setattr, file, name, getattr(file, name))
                setattr(file, name, native)
            yield


def _agree(tried: Callable[[Function], list[Tensor]], own: Function, native: Function) -> bool:
    try:
        with torch.inference_mode():
            pairs = list(zip(tried(own), tried(native), strict=True))
    except CALL_ERRORS:  # the function takes other arguments
        return False
    return all(float((a - b).abs().max()) <= _TOLERANCE * float(a.abs().max()) for a, b in pairs)
