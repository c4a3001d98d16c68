"""A linear on the native kernels, for models whose other parts torch runs. Runs in the engine process."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...checkpoints.coded_linear import tensors_of
from ...checkpoints.quantization import Quantize
from ...reading.recipe_parts import Linear, NotUnderstoodError
from ..abi.decoder import LinearOp, QuantizeOp
from ..abi.operations import OperationArray
from ..abi.parts import Epilogue
from ..abi.step_inputs import StepInputs
from ..abi.structures import Operation
from ..file_mapping import release_pages
from ..memory import Arena
from ..packing import Packed, Packer
from ..thread_pool import ThreadPool


class NativeLinears:
    """Makes linears that share a pool of threads.

    Attributes:
        pool: theirs.
        alone: a pool of the calling thread, for what is small.

    Args:
        dtype: bf16 or fp32, of the model; linears of another format are left to torch.
    """

    def __init__(self, dtype: torch.dtype, threads: int) -> None:
        self.pool, self.alone = ThreadPool(threads, often=True), ThreadPool(1)
        self.dtype = dtype
        self._packer = Packer(dtype, self.pool, Arena())

    def make(self, linear: Linear, quantize: Quantize | None) -> NativeLinear | None:
        """The linear with its weight packed, quantized if asked for; None if the kernels don't support it."""
        packed = self.packed([linear], quantize)
        return None if packed is None else NativeLinear(packed, self.pool, self.dtype)

    def packed(self, linears: list[Linear], quantize: Quantize | None) -> Packed | None:
        """The packed weights of one linear or a gated pair; None if the kernels don't support them."""
        if any(linear.weight.dtype != self.dtype for linear in linears):
            return None
        try:
            packed = self._packer.pack(linears, quantize)
        except NotUnderstoodError:  # an odd width
            return None
        release_pages(tensor for linear in linears for tensor in tensors_of(linear.weight))
        return packed

    def close(self) -> None:
        """End the threads: what was made computes no more."""
        self.pool.close()
        self.alone.close()


class Products:
    """Matrix products with packed weights, one after the other, in one call of the kernels.

    Args:
        products: weight of each product, and what is done to its result.
    """

    def __init__(self, *products: tuple[Packed, Epilogue]) -> None:
        self._weights = [packed for packed, _ in products]
        listed = [_operations(packed, epilogue) for packed, epilogue in products]
        self.array = OperationArray(itertools.chain(*listed))
        ends = list(itertools.accumulate(map(len, listed)))
        self._linears = [self.array.view(end - 1, LinearOp) for end in ends]
        self._quantizers = [
            self.array.view(end - 2, QuantizeOp) if packed.of_codes else None
            for packed, end in zip(self._weights, ends, strict=True)
        ]

    def run(self, pool: ThreadPool, *tensors: tuple[Tensor, Tensor]) -> None:
        """Run all products; `tensors` are each one's input (R, in) and output (R, out), both in the model's dtype."""
        codes = [
            _aim(pool, quantizer, linear, rows, made)
            for quantizer, linear, (rows, made) in zip(self._quantizers, self._linears, tensors, strict=True)
        ]
        rows = tensors[0][0]
        pool.run(self.array, StepInputs(tokens=len(rows)), bf16=rows.dtype == torch.bfloat16)
        del codes  # kept alive until here


def _operations(packed: Packed, epilogue: Epilogue) -> list[Operation]:
    """The operations of a product: if weights are codes, the input is quantized first."""
    bias, order = (None if part is None else part.data_ptr() for part in (packed.bias, packed.order))
    product = LinearOp(n=packed.n, k=packed.k, weight=packed.addresses, bias=bias, epilogue=epilogue)
    return [QuantizeOp(k=packed.k, order=order), product] if packed.of_codes else [product]


def _aim(pool: ThreadPool, quantizer: QuantizeOp | None, linear: LinearOp, rows: Tensor, made: Tensor) -> Tensor | None:
    """Point operations at `rows` to read and `made` to write; keep the returned buffer alive until they have run."""
    given, codes = rows.data_ptr(), None
    if quantizer is not None:
        codes = torch.empty(len(rows), pool.codes_bytes(quantizer.k), dtype=torch.int8)
        quantizer.in_, quantizer.out = given, codes.data_ptr()
        given = codes.data_ptr()
    linear.in_, linear.output.out = given, made.data_ptr()
    return codes


def rows_of(x: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """(..., width) as the kernels read it: (R, width)."""
    return x.to(dtype).reshape(-1, width).contiguous()


class Together(Protocol):
    """Computes several linears at once; see `siblings`."""

    def of(self, linear: NativeLinear, x: Tensor) -> Tensor:
        """The result of one of them for x."""
        ...


class NativeLinear(nn.Module):
    """x @ weight.T + bias. Ignores changes of a module's dtype or device: those of packed weights are fixed.

    Attributes:
        siblings: if set, computes it together with linears that are given the same input.
    """

    siblings: Together | None = None

    def __init__(self, packed: Packed, pool: ThreadPool, dtype: torch.dtype) -> None:
        super().__init__()
        self.out_features, self.in_features = packed.n, packed.k
        self.packed = packed
        self.pool = pool
        self.dtype = dtype
        for name, part in packed.parts.items():
            self.register_buffer(name, part, persistent=False)
        self.products = Products((packed, Epilogue()))

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out) in the model's dtype."""
        if self.siblings is not None:
            return self.siblings.of(self, x)
        rows = rows_of(x, self.in_features, self.dtype)
        made = torch.empty(len(rows), self.out_features, dtype=self.dtype)
        self.products.run(self.pool, (rows, made))
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
