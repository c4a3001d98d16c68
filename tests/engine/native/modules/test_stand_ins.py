"""Kernels stand in for functions that compute the same, while a model runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch import nn
from transformers.models.falcon_h1 import modeling_falcon_h1
from transformers.models.qwen3_5 import modeling_qwen3_5 as file

from djl_python.engine.native.library import library
from djl_python.engine.native.modules.stand_ins import StandIns
from djl_python.engine.native.thread_pool import ThreadPool
from tests.kernels import kernels_or_skip

RULES = ["torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"]
CONVOLUTIONS = ["causal_conv1d_fn", "causal_conv1d_update"]


class Module(nn.Module):
    """Stands in a file that has the functions."""


class OfFalcon(nn.Module):
    """The same in another file."""


Module.__module__ = file.__name__
OfFalcon.__module__ = modeling_falcon_h1.__name__


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> None:
    """Which function is found and replaced is the same for all kernels."""
    kernels_or_skip(library)


@pytest.fixture(scope="module")
def pool(_kernels: None) -> Iterator[ThreadPool]:
    made = ThreadPool(2)
    yield made
    made.close()


def names(pool: ThreadPool, module: nn.Module) -> list[str]:
    return [name for _, name, _ in StandIns(nn.Sequential(module), pool).places]


def test_all_that_are_known_are_found(pool: ThreadPool) -> None:
    assert names(pool, Module()) == RULES + CONVOLUTIONS
    assert names(pool, OfFalcon()) == CONVOLUTIONS
    assert names(pool, nn.Linear(2, 2)) == []


def test_the_functions_are_replaced_only_meanwhile(pool: ThreadPool) -> None:
    own = file.torch_chunk_gated_delta_rule
    with StandIns(nn.Sequential(Module()), pool).in_place():
        assert file.torch_chunk_gated_delta_rule is not own
    assert file.torch_chunk_gated_delta_rule is own


def test_a_function_that_computes_something_else_is_left(pool: ThreadPool, monkeypatch: pytest.MonkeyPatch) -> None:
    own, update = file.torch_chunk_gated_delta_rule, file.causal_conv1d_update

    def other(*given: Any, **named: Any) -> Any:
        answer, state = own(*given, **named)
        return 1.01 * answer, state

    monkeypatch.setattr(file, RULES[0], other)
    monkeypatch.setattr(file, CONVOLUTIONS[1], lambda hidden, state: update(hidden, state))
    assert names(pool, Module()) == [RULES[1], CONVOLUTIONS[0]]
