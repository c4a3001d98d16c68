"""Linears on the native kernels compute what torch's linears compute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from djl_python.engine.checkpoints.dequantizing_linear import DequantizingLinear
from djl_python.engine.checkpoints.linears import Linear, as_linear
from djl_python.engine.checkpoints.quantization import quantized
from djl_python.engine.checkpoints.rounding import Quantize
from djl_python.engine.checkpoints.stored.quantized_checkpoint import QuantizedCheckpoint
from djl_python.engine.native.abi.decoder import LinearOp
from djl_python.engine.native.abi.enums import Activation
from djl_python.engine.native.modules.linears import NativeLinear, NativeLinears
from djl_python.engine.reading.recipe.activations import FUNCTIONS
from tests.quantized_checkpoints import Method, rounded


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def linears(request: pytest.FixtureRequest) -> Iterator[NativeLinears]:
    made = NativeLinears(request.param, threads=2)
    yield made
    made.pool.close()


def a_linear(linears: NativeLinears, bias: bool = True, width: int = 192) -> Linear:
    random = torch.Generator().manual_seed(3)
    weight = (torch.randn(100, width, generator=random) * 0.05).to(linears.dtype)
    return Linear(weight, torch.randn(100, generator=random).to(linears.dtype) if bias else None)


def packed(linears: NativeLinears, linear: Linear, quantize: Quantize | None = None) -> NativeLinear:
    made = linears.make(linear, quantize)
    assert made is not None
    return made


def expected(linear: Linear, x: torch.Tensor) -> torch.Tensor:
    bias = None if linear.bias is None else linear.bias.float()
    return nn.functional.linear(x.float(), linear.numbers.float(), bias)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (2, 50), (0, 3)])
def test_products(linears: NativeLinears, shape: tuple[int, int], bias: bool) -> None:
    linear = a_linear(linears, bias)
    x = torch.randn(*shape, 192).to(linears.dtype)
    result = packed(linears, linear)(x)
    assert (result.dtype, result.shape) == (linears.dtype, (*shape, 100))
    torch.testing.assert_close(result.float(), expected(linear, x), rtol=1e-2, atol=1e-2)


def test_a_strided_input(linears: NativeLinears) -> None:
    linear = a_linear(linears)
    x = torch.randn(3, 4, 384).to(linears.dtype)[:, ::2, ::2]
    torch.testing.assert_close(packed(linears, linear)(x).float(), expected(linear, x), rtol=1e-2, atol=1e-2)


CODED = [
    Method("gptq"),
    Method("gptq", 8, 128),
    Method("gptq", act_order=True),
    Method("gptq", group_size=32),  # numbers: its groups are smaller than the kernels'
    Method("gemm", group_size=128),
    Method("pack-quantized", 4, -1, symmetric=True),
]


@pytest.mark.parametrize("rows", [1, 6, 7, 12, 40])
@pytest.mark.parametrize("method", CODED, ids=str)
def test_codes_of_a_checkpoint(linears: NativeLinears, method: Method, rows: int, tmp_path: Path) -> None:
    """What is multiplied are integers whose greatest is 127 in each group: they lose nothing."""
    random = torch.Generator().manual_seed(4)
    tensors, stands_for = rounded(torch.randn(104, 256, generator=random) * 0.05, method)
    save_file({f"linear.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    checkpoint = QuantizedCheckpoint(tmp_path, method.configuration)
    bias = nn.Parameter(torch.randn(104, generator=random).to(linears.dtype))
    quantized = as_linear(DequantizingLinear((104, 256), checkpoint.source("linear", 256), bias, linears.dtype))
    assert quantized is not None
    x = torch.randint(-127, 128, (rows, 256), generator=random).to(linears.dtype)
    x[:, ::8] = 127
    made = packed(linears, quantized)(x)
    wanted = x.float() @ stands_for.T + bias.float()
    allowed = 1e-5 if linears.dtype == torch.float32 else 1e-2
    assert ((made.float() - wanted).abs() <= allowed * (x.float().abs() @ stands_for.abs().T)).all()


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_rounded_weights(linears: NativeLinears, quantize: Quantize) -> None:
    linear = a_linear(linears)
    codes = quantized(linear.numbers, quantize)
    x = torch.randn(5, 192).to(linears.dtype)
    result = packed(linears, linear, quantize)(x).float()
    wanted = expected(Linear(codes.values(192), linear.bias), x)
    assert float((result - wanted).norm() / wanted.norm()) < 0.02


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
@pytest.mark.parametrize("threads", [2, 3, 5])
def test_a_rows_product_does_not_depend_on_threads(
    linears: NativeLinears, threads: int, quantize: Quantize | None
) -> None:
    """However panels, and rows of a panel, are shared out: all rows, and each as if it were alone.

    But for bf16 that is multiplied by tiles, where more than six are.
    """
    random = torch.Generator().manual_seed(4)
    linear = Linear((torch.randn(7 * 64 - 5, 192, generator=random) * 0.05).to(linears.dtype), None)
    others = NativeLinears(linears.dtype, threads)
    mine, theirs = packed(linears, linear, quantize), packed(others, linear, quantize)
    x = torch.randn(230, 192, generator=random).to(linears.dtype)
    alone = torch.cat([mine(row[None]) for row in x])
    by_tiles = mine.pool.vectors.endswith("AMX") and linears.dtype == torch.bfloat16 and quantize is None
    many = mine(x) if by_tiles else alone
    for rows in (1, 23, 24, 30, 31, 47, 96, 97, 130, 230):
        assert torch.equal(theirs(x[:rows]), (many if rows > 6 else alone)[:rows]), rows
    others.pool.close()


def test_the_weight_can_still_be_looked_at(linears: NativeLinears) -> None:
    linear = a_linear(linears)
    made = packed(linears, linear)
    torch.testing.assert_close(made.weight.float(), linear.numbers.float(), rtol=1e-2, atol=2e-2)
    assert torch.equal(packed(linears, a_linear(linears, bias=False)).weight, linear.numbers)
    assert made.bias is not None and linear.bias is not None
    assert torch.equal(made.bias, linear.bias)


def test_weights_that_the_kernels_can_not_take_are_left_to_torch(linears: NativeLinears) -> None:
    other = torch.float16
    assert linears.make(Linear(torch.randn(4, 6, dtype=other), None), None) is None


def test_a_weight_is_unpacked_by_who_computes_with_it(linears: NativeLinears) -> None:
    made = packed(linears, a_linear(linears, bias=False))
    weight = made.weight
    assert (weight.dtype, weight.shape, weight.device.type) == (linears.dtype, (100, 192), "cpu")
    assert "unpacked" not in vars(weight)
    with torch.inference_mode():
        product = weight @ torch.ones(192, 1, dtype=linears.dtype)
    torch.testing.assert_close(product, a_linear(linears, bias=False).numbers @ torch.ones(192, 1, dtype=linears.dtype))
    assert type(weight.unpacked) is torch.Tensor  # type: ignore[attr-defined]
    assert made.weight is weight


@pytest.mark.parametrize("activation", [each.name.lower() for each in Activation if each.name.lower() in FUNCTIONS])
def test_activations_are_as_exact_as_torchs(activation: str) -> None:
    linears = NativeLinears(torch.float32, threads=1)
    made = packed(linears, Linear(torch.eye(64), None))
    made.operations.view(-1, LinearOp).epilogue.activation = Activation.named(activation)
    x = torch.linspace(-12, 12, 64 * 301).view(-1, 64)
    torch.testing.assert_close(made(x).double(), FUNCTIONS[activation](x.double()), rtol=1e-6, atol=1e-6)
    linears.pool.close()
