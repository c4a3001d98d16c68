"""Products of bf16 are those of fp32, rounded, where a processor has none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from djl_python.engine.runner.wide_products import wide_products

CPU = torch.device("cpu")


@pytest.fixture
def inputs() -> tuple[torch.Tensor, nn.Linear]:
    torch.manual_seed(0)
    return torch.randn(5, 300).bfloat16(), nn.Linear(300, 70, dtype=torch.bfloat16)


@torch.inference_mode()
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_of_bf16_is_the_rounded_product_in_fp32(
    inputs: tuple[torch.Tensor, nn.Linear], monkeypatch: pytest.MonkeyPatch, bias: bool
) -> None:
    x, linear = inputs
    if not bias:
        linear.register_parameter("bias", None)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr("djl_python.engine.runner.wide_products.ROWS", 32)
    with wide_products(CPU):
        made = linear(x)
    exact = linear.float()(x.float())
    assert torch.equal(made, exact.bfloat16())


@torch.inference_mode()
def test_other_formats_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    linear = nn.Linear(8, 4, dtype=torch.float64)
    with wide_products(CPU):
        assert linear(torch.ones(1, 8, dtype=torch.float64)).dtype == torch.float64


def test_a_processor_that_multiplies_bf16_does_so(
    inputs: tuple[torch.Tensor, nn.Linear], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    x, linear = inputs
    with wide_products(CPU):
        assert torch.equal(linear(x), torch.nn.functional.linear(x, linear.weight, linear.bias))
