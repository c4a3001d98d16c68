"""Convolutions of the kernels are those of transformers' functions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_5 import modeling_qwen3_5 as file

from djl_python.engine.native.modules import causal_conv
from djl_python.engine.native.thread_pool import ThreadPool


@pytest.fixture(scope="module", params=[1, 3])
def pool(_kernels: None, request: pytest.FixtureRequest) -> Iterator[ThreadPool]:
    made = ThreadPool(request.param)
    yield made
    made.close()


def some(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def near(actual: Tensor, expected: Tensor) -> None:
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    tolerance = 2e-2 if expected.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", ["silu", None])
@pytest.mark.parametrize(("rows", "channels", "tokens", "taps"), [(1, 200, 70, 4), (3, 16, 1, 2), (2, 7, 3, 8)])
def test_pieces_of_prompts(
    pool: ThreadPool, rows: int, channels: int, tokens: int, taps: int, activation: str | None, dtype: torch.dtype
) -> None:
    weight, bias = some(channels, taps, dtype=dtype), some(channels, dtype=dtype)
    hidden = some(rows, channels, tokens, dtype=dtype)
    by_token = hidden.transpose(1, 2).contiguous().transpose(1, 2)
    function = causal_conv.native(file.causal_conv1d_fn, pool)
    for given in (hidden, by_token, hidden.repeat(1, 1, 2)[:, :, ::2]):
        for own in (bias, None):
            expected = file.causal_conv1d_fn(given, weight, own, activation=activation)
            near(function(given, weight, own, activation=activation), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "channels", "taps"), [(1, 200, 4), (5, 16, 2), (2, 7, 8)])
def test_the_update_by_a_token_equals_transformers(
    pool: ThreadPool, rows: int, channels: int, taps: int, dtype: torch.dtype
) -> None:
    weight, bias = some(channels, taps, dtype=dtype), some(channels, dtype=dtype)
    state = some(rows, channels, taps, dtype=dtype)
    ours = state.clone()
    function = causal_conv.native_update(file.causal_conv1d_update, pool)
    for step in range(3):
        hidden = some(rows, channels, 1, dtype=dtype) + step
        near(
            function(hidden, ours, weight, bias, "silu"), file.causal_conv1d_update(hidden, state, weight, bias, "silu")
        )
        assert torch.equal(ours, state)


def test_inputs_that_the_kernel_can_not_take_go_to_transformers(pool: ThreadPool) -> None:
    function = causal_conv.native_update(file.causal_conv1d_update, pool)
    weight, hidden = some(5, 4, dtype=torch.float32), some(2, 5, 1, dtype=torch.float32)
    for state, given, activation in (
        (some(2, 5, 6, dtype=torch.float32), hidden, "silu"),  # longer than the taps
        (some(2, 5, 4, dtype=torch.float32), some(2, 5, 3, dtype=torch.float32), None),  # several tokens
        (some(2, 5, 4, dtype=torch.float32), hidden, "tanh"),
    ):
        ours = state.clone()
        actual = function(given, ours, weight, None, activation)
        assert torch.equal(actual, file.causal_conv1d_update(given, state, weight, None, activation))
        assert torch.equal(ours, state)
