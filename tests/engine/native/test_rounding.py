"""Weights that are rounded to blocks of 4, 5 or 6 bits at load: near to what they were, and as torch rounds them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from djl_python.engine.checkpoints.linears import Linear
from djl_python.engine.checkpoints.quantization import quantized
from djl_python.engine.checkpoints.rounding import Rounding
from djl_python.engine.native.abi.enums import WeightFormat
from djl_python.engine.native.memory import Arena
from djl_python.engine.native.packing import Packed, Packer
from djl_python.engine.native.thread_pool import ThreadPool
from tests.engine.native.test_blocks import product

ROUNDINGS: list[Rounding] = ["int4", "int5", "int6"]
#: Squared errors of normally distributed numbers, as a share of their squares: what a scale for 64 inputs with a whole
#: zero point had was 0.0088.
MOST = {"int4": 0.0055, "int5": 0.00135, "int6": 0.00034}


@pytest.fixture(scope="module")
def pool(_kernels: None) -> Iterator[ThreadPool]:
    made = ThreadPool(2)
    yield made
    made.close()


def a_weight(n: int, k: int, seed: int = 0) -> Tensor:
    """Rows of different sizes."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(n, k, generator=random) * torch.logspace(-4, 1, n)[:, None]


def packed(pool: ThreadPool, rounding: Rounding, *weights: Tensor) -> Packed:
    return Packer(torch.float32, pool, Arena()).pack([Linear(weight, None) for weight in weights], rounding)


def numbers(pool: ThreadPool, weight: Packed) -> Tensor:
    """What a packed weight stands for, (n, k): rows of the identity are rounded to themselves."""
    return product(pool, weight, torch.eye(weight.k)).T


def error(made: Tensor, weight: Tensor) -> Tensor:
    """Each row's squared error, as a share of its squares."""
    return (made.double() - weight.double()).square().sum(1) / weight.double().square().sum(1)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "k"), [(70, 512), (64, 576), (3, 40)])
def test_kernels_round_as_torch_does(pool: ThreadPool, rounding: Rounding, dtype: torch.dtype, n: int, k: int) -> None:
    """But for ties: where sums in another order make a step the next one, a block has other codes, as good."""
    weight = a_weight(n, k).to(dtype)
    made, expected = numbers(pool, packed(pool, rounding, weight)), quantized(weight, rounding).values(k)
    assert ((made - expected).abs() > 1e-5 * expected.abs().amax(1, keepdim=True)).float().mean() < 0.03
    torch.testing.assert_close(error(made, weight), error(expected, weight), rtol=0.05, atol=0)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_errors_are_small_in_rows_of_any_size(pool: ThreadPool, rounding: Rounding) -> None:
    for scale in (1.0, 30.0, 1e3):
        weight = a_weight(96, 1024, seed=1) * scale
        errors = error(numbers(pool, packed(pool, rounding, weight)), weight)
        assert errors.mean() < MOST[rounding]
        assert errors.max() < 1.25 * MOST[rounding]


def test_bits_and_bytes(pool: ThreadPool) -> None:
    weight = a_weight(128, 1024)
    made = {rounding: packed(pool, rounding, weight) for rounding in ROUNDINGS}
    assert {each.format for each in made.values()} == {
        WeightFormat.BLOCKS_4,
        WeightFormat.BLOCKS_5,
        WeightFormat.BLOCKS_6,
    }
    assert [made[rounding].bytes * 8 / weight.numel() for rounding in ROUNDINGS] == [4.625, 5.625, 6.625]


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_gated_pair_shares_panels(pool: ThreadPool, rounding: Rounding) -> None:
    gate, up = a_weight(70, 256), a_weight(70, 256, seed=2)
    made = product(pool, packed(pool, rounding, gate, up), torch.eye(256), gated=True)
    expected = numbers(pool, packed(pool, rounding, gate)) * numbers(pool, packed(pool, rounding, up))
    torch.testing.assert_close(made, expected.T, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_blocks_that_are_not_as_weights_are(pool: ThreadPool, rounding: Rounding) -> None:
    """Zeros, one number again and again, numbers of one sign, one that is far from the others, very small ones."""
    random = torch.Generator().manual_seed(3)
    weight = torch.zeros(7, 256)
    weight[1], weight[2] = -3.0, 0.7
    weight[3] = torch.rand(256, generator=random) + 1
    weight[4] = -weight[3]
    weight[5] = torch.randn(256, generator=random) * 0.01
    weight[5, 100] = 50.0
    weight[6] = torch.randn(256, generator=random) * 1e-5
    made = numbers(pool, packed(pool, rounding, weight))
    assert made[0].abs().max() == 0
    assert error(made[1:5], weight[1:5]).max() < 0.004
    assert error(made[5:6], weight[5:6]).max() < 1e-4
    assert error(made[6:], weight[6:]).max() < 0.03
    assert (
        error(torch.cat((made[5:6, :96], made[5:6, 128:]), 1), torch.cat((weight[5:6, :96], weight[5:6, 128:]), 1))
        < 0.6
    )
    torch.testing.assert_close(made, quantized(weight, rounding).values(256), rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_numbers_are_not_hidden(pool: ThreadPool, wrong: float) -> None:
    weight = a_weight(64, 256)
    weight[3, 17] = wrong
    made = product(pool, packed(pool, "int4", weight), torch.ones(1, 256))[0]
    assert made[3].isnan()
    assert made.isnan().sum() == 1
    assert not quantized(weight, "int4").values(256)[3].isfinite().all()
