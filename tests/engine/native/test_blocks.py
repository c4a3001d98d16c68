"""GGUF blocks, packed for the kernels, are the numbers that gguf-py makes of them: whatever is multiplied, or read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from djl_python.engine.checkpoints.blocks import BlockRows
from djl_python.engine.checkpoints.dequantizing_linear import DequantizingLinear
from djl_python.engine.checkpoints.linears import Linear
from djl_python.engine.checkpoints.stored.gguf_checkpoint import GgufSource
from djl_python.engine.native.abi.decoder import EmbedOp, LinearOp, QuantizeOp
from djl_python.engine.native.abi.enums import BlockType, Mode
from djl_python.engine.native.abi.operations import OperationArray
from djl_python.engine.native.abi.parts import Epilogue, Output
from djl_python.engine.native.abi.step_inputs import StepInputs
from djl_python.engine.native.block_forms import FORMS
from djl_python.engine.native.memory import Arena
from djl_python.engine.native.packing import Packed, Packer
from djl_python.engine.native.thread_pool import ThreadPool
from djl_python.engine.native.unpacking import unpack_blocks
from djl_python.gguf.container import read_file
from djl_python.gguf.types import TENSOR_TYPES
from djl_python.gguf.weights import MULTIPLIED, Weight

_BLOCK = 32
_TYPES = [kind.name for kind in BlockType]
#: Where a block has fp16 numbers.
_HALVES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    **{"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "MXFP4": ()},
}


@pytest.fixture(scope="module")
def pool(_kernels: None) -> Iterator[ThreadPool]:
    made = ThreadPool(2)
    yield made
    made.close()


class Blocks:
    """A weight of random codes in a GGUF file.

    Attributes:
        numbers: (n, k) fp32, as gguf-py dequantizes it.
    """

    def __init__(self, path: Path, kind: str, n: int, k: int, seed: int = 0) -> None:
        number, stored = next((number, each) for number, each in TENSOR_TYPES.items() if each.name == kind)
        rng = np.random.default_rng(seed)
        blocks = rng.integers(0, 256, (n, k // stored.numbers, stored.size), dtype=np.uint8)
        for at in _HALVES[kind]:
            halves = (rng.standard_normal(blocks.shape[:2]) / 64).astype("<f2")
            blocks[:, :, at : at + 2] = halves[:, :, None].view(np.uint8)
        if kind == "MXFP4":
            blocks[:, :, 0] = rng.integers(118, 124, blocks.shape[:2])
        rows, of_type = blocks.reshape(n, -1), gguf.GGMLQuantizationType(number)
        self.numbers = torch.from_numpy(gguf.dequantize(rows, of_type))
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tensor("weight", rows, raw_dtype=of_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        file = read_file(path)
        tensor = file.tensors["weight"]
        source = GgufSource(Weight(file, tensor, tensor.shape, rows=n))
        self.linear = DequantizingLinear((n, k), source, None, torch.float32)

    def packed(self, pool: ThreadPool, *others: Blocks) -> Packed:
        linears = [Linear(each.linear.weight, None) for each in (self, *others)]
        return Packer(torch.float32, pool, Arena()).pack(linears, None)


def product(pool: ThreadPool, packed: Packed, x: Tensor, *, gated: bool = False) -> Tensor:
    """x (rows, k) times the packed weight, with what rounding x needs."""
    made = torch.full((len(x), packed.n), float("nan"))
    codes = torch.empty(len(x), pool.codes_bytes(packed.k, True), dtype=torch.int8)
    rounding = QuantizeOp(k=packed.k, in_=x.data_ptr(), out=codes.data_ptr(), for_blocks=True)
    operation = LinearOp(
        n=packed.n,
        k=packed.k,
        weight=packed.addresses,
        in_=codes.data_ptr(),
        output=Output(out=made.data_ptr(), mode=Mode.STORE_FP32),
        epilogue=Epilogue(gated=gated),
    )
    pool.run(OperationArray([rounding, operation]), StepInputs(tokens=len(x), wanted=len(x)))
    return made


def rounded(x: Tensor) -> Tensor:
    """Rows as the kernels round them: 8 bits, with a scale for 32 numbers."""
    blocks = x.double().view(len(x), -1, _BLOCK)
    scales = blocks.abs().amax(2, keepdim=True) / 127
    return ((blocks / scales.clamp_min(1e-30)).round() * scales).view(x.shape)


def test_every_type_that_is_multiplied_is_packed() -> None:
    assert set(_TYPES) == set(MULTIPLIED) == set(FORMS)


@pytest.mark.parametrize("kind", _TYPES)
def test_kernels_make_the_numbers_that_gguf_py_does(_kernels: None, tmp_path: Path, kind: str) -> None:
    blocks = Blocks(tmp_path / "a.gguf", kind, 70, 512)
    rows = blocks.linear.source.blocks()
    assert rows is not None
    made = unpack_blocks(rows, 512, torch.float32)
    assert made is not None
    torch.testing.assert_close(made, blocks.numbers, rtol=3e-7, atol=3e-7 * float(blocks.numbers.abs().max()))
    halved = unpack_blocks(rows, 512, torch.bfloat16)
    assert halved is not None and torch.equal(halved, made.bfloat16())
    some = torch.tensor([69, 3, 3])
    chosen = unpack_blocks(rows.take(some).padded(1), 512, torch.float16)
    assert chosen is not None
    assert torch.equal(chosen, torch.cat([made[some], torch.zeros(1, 512)]).half())


@pytest.mark.parametrize("scale", [6.1035e-05, 5.96e-08, 65504.0, float("inf"), 0.0, -1.5])
def test_any_fp16_scale_is_its_number(_kernels: None, tmp_path: Path, scale: float) -> None:
    block = np.zeros(34, np.uint8)
    block[:2] = np.array([scale], "<f2").view(np.uint8)
    block[2:] = np.arange(1, 33)
    rows = BlockRows("Q8_0", torch.tensor([block.ctypes.data]), (block,))
    made = unpack_blocks(rows, 32, torch.float32)
    expected = gguf.dequantize(block[None], gguf.GGMLQuantizationType.Q8_0)
    assert made is not None and made.tolist() == expected.tolist()


@pytest.mark.parametrize("kind", _TYPES)
def test_codes_come_back(pool: ThreadPool, tmp_path: Path, kind: str) -> None:
    """Rows of the identity are rounded to themselves; what is left is the order of sums in fp32."""
    blocks = Blocks(tmp_path / "a.gguf", kind, 70, 512)
    packed = blocks.packed(pool)
    made = product(pool, packed, torch.eye(512))
    torch.testing.assert_close(made.T, blocks.numbers, rtol=2e-6, atol=2e-5 * float(blocks.numbers.abs().max()))
    stored = sum(each.nbytes for each in blocks.linear.checkpoint_tensors)
    assert packed.bytes <= 1.05 * stored * 128 / 70 + 16


@pytest.mark.parametrize("kind", _TYPES)
def test_products_are_those_of_rounded_rows(pool: ThreadPool, tmp_path: Path, kind: str) -> None:
    """For one row, for tiles of all heights, and for parts of a wide panel."""
    blocks = Blocks(tmp_path / "a.gguf", kind, 130, 4096, seed=1)
    packed = blocks.packed(pool)
    x = torch.randn(100, 4096, generator=torch.Generator().manual_seed(1))
    x[:, ::7] *= 20
    x[3, 64:96] = 0
    expected, sizes = rounded(x) @ blocks.numbers.double().T, x.double().abs() @ blocks.numbers.double().abs().T
    together = product(pool, packed, x)
    assert ((together - expected).abs() <= 3e-6 * sizes).all()
    for rows in range(1, 14):
        assert torch.equal(product(pool, packed, x[:rows].contiguous()), together[:rows])
    # What rounding the rows to 8 bits in blocks can cost at most.
    scales = x.view(100, -1, _BLOCK).abs().amax(2) / 254
    most = scales @ blocks.numbers.view(130, -1, _BLOCK).abs().sum(2).T
    assert ((together - x @ blocks.numbers.T).abs() <= 1.001 * most + 3e-6 * sizes).all()


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_rows_of_fewer_than_eight_blocks(pool: ThreadPool, tmp_path: Path, kind: str) -> None:
    blocks = Blocks(tmp_path / "a.gguf", kind, 64, 96, seed=2)
    x = torch.randn(3, 96)
    made = product(pool, blocks.packed(pool), x)
    torch.testing.assert_close(made.double(), rounded(x) @ blocks.numbers.double().T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_a_gated_pair_shares_panels(pool: ThreadPool, tmp_path: Path, kind: str) -> None:
    gate, up = (Blocks(tmp_path / f"{seed}.gguf", kind, 70, 256, seed) for seed in range(2))
    made = product(pool, gate.packed(pool, up), torch.eye(256), gated=True)
    expected = (gate.numbers * up.numbers).T
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("kind", _TYPES)
def test_a_table_of_tokens_is_read_from_its_codes(pool: ThreadPool, tmp_path: Path, kind: str) -> None:
    blocks = Blocks(tmp_path / "a.gguf", kind, 70, 512, seed=3)
    packed = blocks.packed(pool)
    ids, slots = torch.arange(70), torch.ones(70, dtype=torch.int64)
    made = torch.full((70, 512), float("nan"))
    operation = EmbedOp(n=512, out=made.data_ptr(), head=packed.addresses, scale=2.0)
    step = StepInputs(tokens=70, block_size=16, ids=ids.data_ptr(), slots=slots.data_ptr())
    pool.run(OperationArray([operation]), step)
    torch.testing.assert_close(made, blocks.numbers * 2, rtol=1e-6, atol=1e-6)


def test_rows_that_are_not_numbers_are_not_hidden(pool: ThreadPool, tmp_path: Path) -> None:
    blocks = Blocks(tmp_path / "a.gguf", "Q4_K", 64, 256)
    x = torch.ones(3, 256)
    x[1, 5], x[2, 200] = float("nan"), float("inf")
    made = product(pool, blocks.packed(pool), x)
    assert made[0].isfinite().all()
    assert made[1:].isnan().all()


def test_rows_in_another_order_and_rows_of_zeros(pool: ThreadPool, tmp_path: Path) -> None:
    blocks = Blocks(tmp_path / "a.gguf", "Q5_K", 70, 256)
    order = torch.arange(70).flip(0)[:33]
    packed = Packer(torch.float32, pool, Arena()).pack([Linear(blocks.linear.weight[order], None)], None)
    made = product(pool, packed, torch.eye(256))
    torch.testing.assert_close(made.T, blocks.numbers[order], rtol=1e-5, atol=1e-5)
    rows = blocks.linear.weight.blocks()
    assert rows is not None
    assert rows.padded(3).addresses[-4:].tolist() == [int(rows.addresses[-1]), 0, 0, 0]


def test_rows_of_two_types_are_joined_as_numbers(pool: ThreadPool, tmp_path: Path) -> None:
    one, other = Blocks(tmp_path / "a.gguf", "Q4_K", 64, 256), Blocks(tmp_path / "b.gguf", "Q6_K", 64, 256)
    packed = one.packed(pool, other)
    assert not packed.of_codes
