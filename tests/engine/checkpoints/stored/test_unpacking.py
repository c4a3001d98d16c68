"""What checkpoints of GPTQ and AWQ hold is unpacked to the numbers that it stands for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from djl_python.engine.checkpoints.stored.unpacking import UnpackedWeight
from tests.quantized_checkpoints import Method, rounded

METHODS = [
    Method("gemm"),
    Method("gemm", group_size=128),
    Method("gemm", group_size=-1),
    *(Method("gptq", bits) for bits in (2, 3, 4, 8)),
    Method("gptq", symmetric=True),
    Method("gptq_v2", group_size=32),
    Method("gptq_v2", 8, -1, symmetric=True),
    Method("gptq", act_order=True),
    Method("gptq", group_size=96),
    Method("gptq", scales=torch.bfloat16),
    Method("pack-quantized"),
    Method("pack-quantized", 3, 128),
    Method("pack-quantized", 4, -1, symmetric=True, scales=torch.bfloat16),
    Method("pack-quantized", 8, act_order=True),
]


def a_weight(n: int = 96, k: int = 256) -> Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(n)) * 0.02


def unpacked(weight: Tensor, method: Method) -> tuple[UnpackedWeight, Tensor]:
    tensors, stands_for = rounded(weight, method)
    return UnpackedWeight.unpacked(method.layout, method.bits, method.group_size, tensors), stands_for


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_unpacked_values_are_what_was_rounded_to(method: Method) -> None:
    weight = a_weight()
    stored, stands_for = unpacked(weight, method)
    assert torch.equal(stored.values(torch.float32), stands_for)
    assert torch.equal(stored.values(torch.bfloat16), stands_for.bfloat16())
    steps = stored.scales.float().amax()
    assert (stands_for - weight).abs().max() <= 1.02 * steps


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_kernels_get_the_same_numbers_or_none(method: Method) -> None:
    stored, stands_for = unpacked(a_weight(), method)
    codes = stored.for_kernels()
    assert (codes is not None) == (method.group_size not in (32, 96))
    if codes is not None:
        assert codes.bits == (8 if method.bits == 8 else 4)
        assert torch.equal(codes.values(256), stands_for)
        assert (codes.order is not None) == method.act_order


@pytest.mark.parametrize("group_size", [64, -1])
@pytest.mark.parametrize("layout", ["gptq", "gemm", "pack-quantized"])
def test_partial_groups_are_unpacked(layout: str, group_size: int) -> None:
    stored, stands_for = unpacked(a_weight(k=96), Method(layout, group_size=group_size))
    assert torch.equal(stored.values(torch.float32), stands_for)
    codes = stored.for_kernels()
    assert codes is not None
    assert codes.codes.shape == (96, 128)
    assert torch.equal(codes.values(96), stands_for)
    assert codes.values(128)[:, 96:].count_nonzero() == 0


def test_scales_that_fp16_does_not_have_are_not_for_kernels() -> None:
    weight = a_weight() * 1e-6
    stored, _ = unpacked(weight, Method("gptq", scales=torch.bfloat16, symmetric=True))
    assert stored.for_kernels() is None


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_zero_point_of_0_borrows_from_the_next_in_the_first_format_of_gptq(bits: int) -> None:
    tensors, _ = rounded(a_weight(), Method("gptq_v2", bits))
    tensors["qzeros"] &= ~((1 << bits) - 1)  # the first zero point of each word
    expected = UnpackedWeight.unpacked("gptq_v2", bits, 64, tensors)
    tensors["qzeros"] = tensors["qzeros"] - int("1".rjust(bits, "0") * (32 // bits), 2)  # as GPTQModel converts it
    weight = UnpackedWeight.unpacked("gptq", bits, 64, tensors)
    assert torch.equal(weight.zeros, expected.zeros)
    assert torch.equal(weight.values(torch.float32), expected.values(torch.float32))


def test_a_zero_point_of_0_that_crosses_words_wraps() -> None:
    tensors, _ = rounded(a_weight(), Method("gptq", 3))
    tensors["qzeros"] = torch.full_like(tensors["qzeros"], -1)  # all of 0, each less 1
    assert not UnpackedWeight.unpacked("gptq", 3, 64, tensors).zeros.any()
