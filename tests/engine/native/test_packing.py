"""Packed weights are the weights: multiplied with rows of the identity, they come back bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from djl_python.engine.checkpoints.linears import Linear
from djl_python.engine.native.abi.decoder import EmbedOp, LinearOp
from djl_python.engine.native.abi.enums import Mode, WeightFormat
from djl_python.engine.native.abi.operations import OperationArray
from djl_python.engine.native.abi.parts import Epilogue, Output
from djl_python.engine.native.abi.step_inputs import StepInputs
from djl_python.engine.native.memory import Arena
from djl_python.engine.native.packing import Packed, Packer
from djl_python.engine.native.thread_pool import ThreadPool

SHAPES = [(64, 128), (70, 130), (31, 2), (200, 900), (70, 2600)]  # the last one in parts


@pytest.fixture(scope="module")
def pool(_kernels: None) -> Iterator[ThreadPool]:
    made = ThreadPool(2)
    yield made
    made.close()


def pack(pool: ThreadPool, *weights: Tensor) -> Packed:
    return Packer(weights[0].dtype, pool, Arena()).pack([Linear(weight, None) for weight in weights], None)


def weights(n: int, k: int) -> Tensor:
    """As trained ones are: most of a size, some far from it."""
    generator = torch.Generator().manual_seed(n * k)
    made = torch.randn(n, k, generator=generator) * 0.02
    made.view(-1)[::517] = 1e-9
    made.view(-1)[5::1031] = 3e4
    made.view(-1)[7::1201] = 0.0
    return made.bfloat16()


def product(pool: ThreadPool, packed: Packed, x: Tensor, *, columns: int | None = None, gated: bool = False) -> Tensor:
    """x (rows, k) times the packed weight."""
    columns = columns or packed.n
    made = torch.full((len(x), columns), float("nan"))
    operation = LinearOp(
        n=columns,
        k=packed.k,
        weight=packed.addresses,
        in_=x.data_ptr(),
        output=Output(out=made.data_ptr(), mode=Mode.STORE_FP32),
        epilogue=Epilogue(gated=gated),
    )
    pool.run(OperationArray([operation]), StepInputs(tokens=len(x), wanted=len(x)), bf16=x.dtype == torch.bfloat16)
    return made


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 8, 40, 1000])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_bf16_comes_back_from_12_bits(pool: ThreadPool, n: int, k: int, rows: int) -> None:
    weight = weights(n, k)
    packed = pack(pool, weight)
    assert packed.format == WeightFormat.TWELVE_BIT
    identity = torch.eye(k, dtype=torch.bfloat16)
    for part in torch.split(identity if rows > 6 else identity[::37], rows):
        expected = part.float() @ weight.float().T
        assert torch.equal(product(pool, packed, part.contiguous()), expected)


def test_a_gated_pair_shares_panels(pool: ThreadPool) -> None:
    up, gate = weights(70, 130), weights(70, 130) * 2
    packed = pack(pool, gate, up)
    assert packed.format == WeightFormat.TWELVE_BIT
    identity = torch.eye(130, dtype=torch.bfloat16)
    assert torch.equal(product(pool, packed, identity, gated=True), (gate.float() * up.float()).T)


@pytest.mark.parametrize("rows", [1, 6, 7, 12, 13, 24, 61, 97, 130])
def test_sums_are_those_without_packing(pool: ThreadPool, rows: int) -> None:
    """But for the last bits: what a list has is added after its part."""
    weight = weights(200, 2600)
    x = torch.randn(rows, 2600).bfloat16()
    in_12_bits, plain = product(pool, pack(pool, weight), x), product(pool, spread(pool, weight), x)[:, :200]
    sizes = x.float().abs() @ weight.float().abs().T
    assert ((in_12_bits - plain).abs() <= 1e-6 * sizes).all()


@pytest.mark.parametrize("packed", ["12 bits", "plain"])
def test_a_row_has_the_same_sums_in_whatever_company(pool: ThreadPool, packed: str) -> None:
    """But for the last bits, where it is alone or one of more that are multiplied by tiles."""
    weight = weights(200, 2600)
    x = torch.randn(130, 2600).bfloat16()
    matrix = pack(pool, weight) if packed == "12 bits" else spread(pool, weight)
    alone = torch.cat([product(pool, matrix, row) for row in torch.split(x, 1)])[:, :200]
    together = product(pool, matrix, x)[:, :200] if pool.vectors.endswith("AMX") else alone
    assert ((together - alone).abs() <= 1e-5 * (x.float().abs() @ weight.float().abs().T)).all()
    for rows in (6, 7, 12, 13, 17, 24, 61, 97, 130):
        made = product(pool, matrix, x[:rows])[:, :200]
        # How many rows are still multiplied without tiles depends on the processor's vectors.
        assert torch.equal(made, together[:rows]) or (rows == 6 and torch.equal(made, alone[:6]))


def spread(pool: ThreadPool, weight: Tensor) -> Packed:
    """The same weight packed as it is, because of more columns that fit no table."""
    anything = torch.arange(len(weight) * weight.shape[1], dtype=torch.int32).to(torch.int16).view(weight.shape)
    packed = pack(pool, torch.cat([weight, anything.view(torch.bfloat16)]))
    assert packed.format == WeightFormat.PLAIN
    return packed


def test_a_tied_embedding_is_read_from_the_head(pool: ThreadPool) -> None:
    weight = weights(200, 900)
    packed = pack(pool, weight)
    assert packed.format == WeightFormat.TWELVE_BIT
    ids, slots = torch.arange(200), torch.ones(200, dtype=torch.int64)
    made = torch.full((200, 900), float("nan"))
    operation = EmbedOp(n=900, out=made.data_ptr(), head=packed.addresses, scale=2.0)
    step = StepInputs(tokens=200, block_size=16, ids=ids.data_ptr(), slots=slots.data_ptr())
    pool.run(OperationArray([operation]), step, bf16=True)
    assert torch.equal(made, weight.float() * 2)


def test_weights_of_all_sizes_stay_as_they_are(pool: ThreadPool) -> None:
    exponents = torch.arange(130 * 70).view(70, 130) % 60
    weight = (2.0 ** (-exponents)).bfloat16()
    packed = pack(pool, weight)
    assert packed.format == WeightFormat.PLAIN
    assert torch.equal(product(pool, packed, torch.eye(130, dtype=torch.bfloat16)), weight.float().T)


def test_nothing_but_zeros_and_what_is_no_number(pool: ThreadPool) -> None:
    weight = torch.zeros(64, 256).bfloat16()
    weight[3, 5], weight[9, 200], weight[11, 17] = float("inf"), float("-inf"), float("nan")
    packed = pack(pool, weight)
    made = product(pool, packed, torch.ones(1, 256, dtype=torch.bfloat16))[0]
    assert (float(made[3]), float(made[9])) == (float("inf"), float("-inf"))
    assert made[11].isnan()
    assert made.count_nonzero() == 3


def test_fp32_is_read_as_it_is(pool: ThreadPool) -> None:
    weight = torch.randn(70, 130)
    packed = pack(pool, weight)
    assert packed.format == WeightFormat.PLAIN
    for rows in (1, 130):
        assert torch.equal(product(pool, packed, torch.eye(130)[:rows].contiguous()), weight.T[:rows])


def test_twelve_bits_are_three_quarters(pool: ThreadPool) -> None:
    weight = (torch.randn(640, 900) * 0.02).bfloat16()
    packed = pack(pool, weight)
    assert packed.bytes < 0.76 * weight.nbytes
