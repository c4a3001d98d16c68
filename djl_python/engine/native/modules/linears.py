"""A linear on the native kernels, for models whose other parts torch runs. Runs in the engine process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...checkpoints.linears import Linear
from ...checkpoints.rounding import Rounding
from ...checkpoints.weights import tensors_of
from ...reading.recipe.primitives import NotUnderstoodError
from ...runner.file_mapping import release_pages
from ..abi.decoder import LinearOp, QuantizeOp
from ..abi.operations import OperationArray
from ..abi.parts import Epilogue
from ..abi.step_inputs import StepInputs
from ..abi.structures import Operation
from ..memory import Arena
from ..packing import Packed, Packer
from ..thread_pool import ThreadPool


class NativeLinears:
    """Makes linears that share a pool of threads.

    Attributes:
        pool: theirs.

    Args:
        dtype: bf16 or fp32, of the model; linears of another format are left to torch.
    """

    def __init__(self, dtype: torch.dtype, threads: int) -> None:
        self.pool = ThreadPool(threads, often=True)
        self.dtype = dtype
        self._packer = Packer(dtype, self.pool, Arena())

    def make(self, linear: Linear, rounding: Rounding | None) -> NativeLinear | None:
        """The linear with its weight packed, rounded if asked for; None if the kernels don't support it."""
        if linear.weight.dtype != self.dtype:
            return None
        try:
            packed = self._packer.pack([linear], rounding)
        except NotUnderstoodError:  # an odd width
            return None
        release_pages(tensors_of(linear.weight))
        return NativeLinear(packed, self.pool, self.dtype)

    def close(self) -> None:
        """End the threads; the linears made here stop working."""
        self.pool.close()


class NativeLinear(nn.Module):
    """x @ weight.T + bias. Ignores changes of a module's dtype or device: those of packed weights are fixed."""

    def __init__(self, packed: Packed, pool: ThreadPool, dtype: torch.dtype) -> None:
        super().__init__()
        self.out_features, self.in_features = packed.n, packed.k
        self.packed = packed
        self.pool = pool
        self.dtype = dtype
        for name, part in packed.parts.items():
            self.register_buffer(name, part, persistent=False)  # counted among the weights that a step reads
        bias, order = (None if part is None else part.data_ptr() for part in (packed.bias, packed.order))
        product = LinearOp(n=packed.n, k=packed.k, weight=packed.addresses, bias=bias, epilogue=Epilogue())
        # If weights are codes, the input is quantized first.
        operations: list[Operation] = [product]
        if packed.of_codes:
            operations.insert(0, QuantizeOp(k=packed.k, order=order, for_blocks=packed.in_blocks))
        self.operations = OperationArray(operations)
        self._product = self.operations.view(-1, LinearOp)
        self._quantize = self.operations.view(0, QuantizeOp) if packed.of_codes else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out) in the model's dtype."""
        rows = x.to(self.dtype).reshape(-1, self.in_features).contiguous()
        made = torch.empty(len(rows), self.out_features, dtype=self.dtype)
        given = rows
        if self._quantize is not None:
            given = torch.empty(
                len(rows), self.pool.codes_bytes(self.in_features, self.packed.in_blocks), dtype=torch.int8
            )
            self._quantize.in_, self._quantize.out = rows.data_ptr(), given.data_ptr()
        self._product.in_, self._product.output.out = given.data_ptr(), made.data_ptr()
        self.pool.run(self.operations, StepInputs(tokens=len(rows)), bf16=self.dtype == torch.bfloat16)
        return made.view(*x.shape[:-1], self.out_features)

    @functools.cached_property
    def weight(self) -> Tensor:
        """(out, in). Many models' code reads its dtype, a few models' its values."""
        return _Weight(self.out_features, self.in_features, self.dtype, self._unpack)

    def _unpack(self) -> Tensor:
        with_bias: Tensor = self(torch.eye(self.in_features, dtype=self.dtype)).T
        return with_bias if self.bias is None else with_bias - self.bias[:, None]

    @property
    def bias(self) -> Tensor | None:
        """(out,)"""
        bias = self.packed.bias
        return None if bias is None else bias[: self.out_features].to(self.dtype)

    def __repr__(self) -> str:
        return f"NativeLinear({self.in_features}, {self.out_features})"

    def _apply(self, *arguments: Any, **named: Any) -> nn.Module:
        return self


class _Weight(Tensor):
    """A tensor that is unpacked on first use and stays so: a model that computes with it does so in every step."""

    @staticmethod
    def __new__(cls, n: int, k: int, dtype: torch.dtype, unpack: Callable[[], Tensor]) -> _Weight:
        made: _Weight = Tensor._make_wrapper_subclass(cls, (n, k), dtype=dtype)
        return made

    def __init__(self, n: int, k: int, dtype: torch.dtype, unpack: Callable[[], Tensor]) -> None:
        self._unpack = unpack

    @functools.cached_property
    def unpacked(self) -> Tensor:
        return self._unpack()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        args, kwargs = tree_map(lambda each: each.unpacked if isinstance(each, cls) else each, (args, kwargs or {}))
        return func(*args, **kwargs)
