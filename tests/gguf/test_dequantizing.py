"""Blocks of codes become the numbers that gguf-py makes of them, to the bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from djl_python.gguf.dequantizing import READABLE, dequantize
from djl_python.gguf.errors import GgufError
from djl_python.gguf.types import TENSOR_TYPES, TensorType
from tests.gguf.k_quantizing import WRITTEN, quantize

_BLOCKS = 200
_K_TYPES = {of_type.name for of_type in WRITTEN}
_BY_NAME = {kind.name: (number, kind) for number, kind in TENSOR_TYPES.items()}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", sorted(READABLE - {"F64"}))
def test_random_bytes_become_the_same_numbers(name: str, seed: int) -> None:
    """Any byte is a code, so random ones are valid blocks; their scales may be infinite or no numbers."""
    number, kind = _BY_NAME[name]
    stored = np.random.default_rng(seed).integers(0, 256, (_BLOCKS, kind.size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        made, expected = (
            dequantize(stored.reshape(-1), kind),
            gguf.dequantize(stored, gguf.GGMLQuantizationType(number)),
        )
    assert made.dtype == np.float32
    np.testing.assert_array_equal(made, expected.reshape(-1))


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "BF16", "F16", *sorted(_K_TYPES)])
def test_quantized_numbers_come_back_nearly(name: str) -> None:
    number, kind = _BY_NAME[name]
    numbers = np.random.default_rng(1).standard_normal((8, 256), np.float32)
    stored = quantize(numbers, gguf.GGMLQuantizationType(number))
    made = dequantize(stored.view(np.uint8).reshape(-1), kind).reshape(numbers.shape)
    assert np.abs(made - numbers).max() < (1.0 if name in ("Q2_K", "Q3_K") else 0.5)


def test_doubles() -> None:
    numbers = np.array([1.0, -2.5, 1e-3])
    assert dequantize(numbers.view(np.uint8), TensorType("F64", 1, 8)).tolist() == numbers.astype(np.float32).tolist()


def test_types_that_are_not_read_are_named() -> None:
    with pytest.raises(GgufError, match="type IQ2_XXS are not read here; expected F32"):
        dequantize(np.zeros(66, np.uint8), _BY_NAME["IQ2_XXS"][1])
