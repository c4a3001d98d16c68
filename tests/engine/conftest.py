"""Tiny models are slower on two threads than on one, and much slower when something else is running."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from djl_python.engine.native.program.sampling import NativeRowSampler
from djl_python.engine.native.thread_pool import ThreadPool
from tests.kernels import kernels_or_skip


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield


@pytest.fixture(scope="session")
def native_pool() -> Iterator[ThreadPool]:
    """Skips where there are no native kernels."""
    pool = kernels_or_skip(lambda: ThreadPool(2))
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def native_row_sampler(native_pool: ThreadPool) -> Iterator[NativeRowSampler]:
    row_sampler = NativeRowSampler(native_pool)
    yield row_sampler
    row_sampler.close()
