"""Mamba 2's state space of the kernels is that of transformers' functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.falcon_h1 import modeling_falcon_h1 as file

from djl_python.engine.native.modules import mamba2
from djl_python.engine.native.thread_pool import ThreadPool

HEADS, GROUPS = 6, 2


@pytest.fixture(scope="module", params=[1, 3])
def pool(_kernels: None, request: pytest.FixtureRequest) -> Iterator[ThreadPool]:
    made = ThreadPool(request.param)
    yield made
    made.close()


class Given:
    """Arguments for `rows` sequences."""

    def __init__(self, rows: int, tokens: int, size: int, state: int, dtype: torch.dtype) -> None:
        random = torch.Generator().manual_seed(tokens)

        def some(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=random)

        self.x, self.dt = some(rows, tokens, HEADS, size).to(dtype), some(rows, tokens, HEADS).to(dtype)
        self.A, self.D, self.bias = -some(HEADS).abs(), some(HEADS).to(dtype), some(HEADS).to(dtype)
        self.B, self.C = (some(rows, tokens, GROUPS, state).to(dtype) for _ in range(2))
        self.state = some(rows, HEADS, size, state)

    def scan(self, function: Any, state: Tensor | None, keep: bool = True) -> Any:
        return function(
            self.x, self.dt, self.A, self.B, self.C, chunk_size=8, D=self.D, z=None, return_final_states=keep,
            dt_bias=self.bias, dt_softplus=True, initial_states=state, dt_limit=(0.0, 1.5),
        )  # fmt: skip

    def update(self, function: Any, state: Tensor, z: Tensor | None) -> Any:
        size, length = self.x.shape[3], self.B.shape[3]
        return function(
            state, self.x[:, 0], self.dt[:, 0, :, None].expand(-1, -1, size),
            self.A[:, None, None].expand(-1, size, length), self.B[:, 0], self.C[:, 0],
            self.D[:, None].expand(-1, size), z=z, dt_bias=self.bias[:, None].expand(-1, size), dt_softplus=True,
        )  # fmt: skip


def near(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    tolerance = 3e-2 if dtype == torch.bfloat16 else 2e-5
    assert float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())


SHAPES = pytest.mark.parametrize(("rows", "size", "state"), [(1, 64, 128), (3, 5, 16), (2, 8, 256)])
FORMATS = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@SHAPES
@FORMATS
def test_pieces_of_prompts(pool: ThreadPool, rows: int, size: int, state: int, dtype: torch.dtype) -> None:
    function = mamba2.native_scan(file.mamba2_chunk_scan, pool)
    given = Given(rows, 19, size, state, dtype)
    for before in (None, given.state):
        expected, expected_state = given.scan(file.mamba2_chunk_scan, before)
        own = None if before is None else before.clone()
        answer, final = given.scan(function, own)
        near(answer, expected, dtype)
        near(final, expected_state, dtype)
        assert own is None or final is own


@SHAPES
@FORMATS
def test_one_token_more(pool: ThreadPool, rows: int, size: int, state: int, dtype: torch.dtype) -> None:
    function = mamba2.native_update(file.mamba2_selective_state_update, pool)
    given = Given(rows, 1, size, state, dtype)
    for z in (None, given.x[:, 0]):
        theirs, ours = given.state.clone(), given.state.clone()
        expected = given.update(file.mamba2_selective_state_update, theirs, z)
        near(given.update(function, ours, z), expected, dtype)
        near(ours, theirs, dtype)


def test_a_state_that_nobody_asks_for_stays(pool: ThreadPool) -> None:
    given = Given(2, 3, 8, 16, torch.float32)
    before = given.state.clone()
    function = mamba2.native_scan(file.mamba2_chunk_scan, pool)
    near(given.scan(function, given.state, keep=False), given.scan(file.mamba2_chunk_scan, before)[0], torch.float32)
    assert torch.equal(given.state, before)


def test_what_the_kernels_cannot_take_is_theirs(pool: ThreadPool) -> None:
    given = Given(2, 3, 8, 20, torch.float32)
    function = mamba2.native_scan(file.mamba2_chunk_scan, pool)
    for found, expected in zip(given.scan(function, None), given.scan(file.mamba2_chunk_scan, None), strict=True):
        assert torch.equal(found, expected)
    update = mamba2.native_update(file.mamba2_selective_state_update, pool)
    theirs, ours = given.state.clone(), given.state.clone()
    expected = given.update(file.mamba2_selective_state_update, theirs, None)
    assert torch.equal(given.update(update, ours, None), expected)
    assert torch.equal(ours, theirs)
