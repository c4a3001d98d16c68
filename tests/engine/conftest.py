"""Tiny models are slower on two threads than on one, and much slower when something else is running."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
