"""Computes a model's products of 16-bit numbers in fp32, where the processor has none. Engine process, once.

Without instructions for bf16, torch multiplies number by number: widening both and rounding the result takes a quarter
of the time. Sums are fp32 either way. A model that is opened runs only a few times, so that packing is no use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

#: torch's names of x86-64 processors whose products of bf16 it has no kernels for.
_WITHOUT: Final = ("DEFAULT", "AVX2")
#: Rows of a weight that are widened at a time: a vocabulary's take less memory so.
ROWS: Final = 4096


class _Widened(TorchFunctionMode):
    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is not torch.nn.functional.linear or kwargs or args[0].dtype != torch.bfloat16:
            return function(*args, **(kwargs or {}))
        x, weight, bias = (*args, None)[:3]
        parts = weight.split(ROWS)
        biases = [None] * len(parts) if bias is None else [each.float() for each in bias.split(ROWS)]
        wide = x.float()
        made = [function(wide, rows.float(), part).bfloat16() for rows, part in zip(parts, biases, strict=True)]
        return torch.cat(made, dim=-1)


def wide_products(device: torch.device) -> AbstractContextManager[Any]:
    """Context in which a model runs: its linears of bf16 are computed in fp32, where that is faster on this device.

    Example:
        with wide_products(torch.device("cpu")):
            model(input_ids=ids)
    """
    slow = device.type == "cpu" and torch.backends.cpu.get_cpu_capability() in _WITHOUT
    return _Widened() if slow else nullcontext()
