"""The gated delta rule of the kernels is that of transformers' functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.qwen3_5 import modeling_qwen3_5 as file

from djl_python.engine.native.modules.stand_ins import StandIns
from djl_python.engine.native.thread_pool import ThreadPool


class Module(nn.Module):
    """Stands in a file that has the functions."""


Module.__module__ = file.__name__


@pytest.fixture(scope="module", params=[1, 3])
def rule(request: pytest.FixtureRequest) -> Iterator[StandIns]:
    pool = ThreadPool(request.param)
    yield StandIns(nn.Sequential(Module()), pool)
    pool.close()


def numbers(rows: int, tokens: int, heads: tuple[int, int], sizes: tuple[int, int], dtype: torch.dtype) -> list[Tensor]:
    random = torch.Generator().manual_seed(tokens)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    query, key = (some(rows, tokens, heads[0], sizes[0]).to(dtype) for _ in range(2))
    value = some(rows, tokens, heads[1], sizes[1]).to(dtype)
    return [query, key, value, -some(rows, tokens, heads[1]).abs(), some(rows, tokens, heads[1]).sigmoid()]


def call(given: list[Tensor], state: Tensor | None, unit: bool = True, keep: bool = True) -> Any:
    query, key, value, g, beta = given
    of = file.torch_chunk_gated_delta_rule if value.shape[1] > 1 else file.torch_recurrent_gated_delta_rule
    return of(
        query, key, value, g=g, beta=beta, initial_state=state, output_final_state=keep, use_qk_l2norm_in_kernel=unit
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(16, 16), (128, 128), (256, 96), (48, 32)])
@pytest.mark.parametrize(("rows", "tokens"), [(1, 70), (3, 2), (5, 1)])
def test_answers_and_states(rule: StandIns, rows: int, tokens: int, sizes: tuple[int, int], dtype: torch.dtype) -> None:
    given = numbers(rows, tokens, (2, 4), sizes, dtype)
    start = torch.randn(rows, 4, *sizes, generator=torch.Generator().manual_seed(9))
    for state, unit in ((None, True), (start, True), (0.1 * start, False)):
        if not unit:
            given[1] = given[1] / sizes[0]  # a rule with long keys doesn't come to rest
        expected, expected_state = call(given, None if state is None else state.clone(), unit)
        with rule.in_place():
            own = None if state is None else state.clone()
            answer, final = call(given, own, unit)
        assert (answer.dtype, answer.shape) == (expected.dtype, expected.shape)
        near = 2e-2 if dtype == torch.bfloat16 else 2e-5
        assert float((answer - expected).abs().max()) <= near * float(expected.abs().max())
        assert float((final - expected_state).abs().max()) <= near * float(expected_state.abs().max())
        assert own is None or final is own


def test_a_state_that_nobody_asks_for_stays(rule: StandIns) -> None:
    state = torch.ones(1, 4, 16, 16)
    with rule.in_place():
        assert call(numbers(1, 3, (2, 4), (16, 16), torch.float32), state, keep=False)[1] is None
    assert torch.equal(state, torch.ones(1, 4, 16, 16))


def test_strided_inputs(rule: StandIns) -> None:
    """As a convolution over (channels, tokens) leaves them."""
    given = numbers(2, 9, (2, 4), (16, 16), torch.float32)
    strided = [each.transpose(1, 2).contiguous().transpose(1, 2) for each in given]
    with rule.in_place():
        assert torch.equal(call(given, None)[0], call(strided, None)[0])


def test_inputs_that_the_kernel_can_not_take_go_to_transformers(rule: StandIns) -> None:
    given = numbers(1, 3, (2, 4), (20, 16), torch.float32)
    with rule.in_place():
        answer, _ = call(given, None)
    assert torch.equal(answer, call(given, None)[0])
