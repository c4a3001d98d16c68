"""What a step takes of a GPU's memory, as far as a machine without one can tell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from djl_python.core.errors import ModelLoadError
from djl_python.engine.batch.chunk import SequenceChunk
from djl_python.engine.batch.sequence import Sequence
from djl_python.engine.checkpoints.loading import LoadedModel, load_model
from djl_python.engine.opening.step_memory import step_bytes
from djl_python.engine.settings import BuiltInSettings
from tests.checkpoints import VOCABULARY, build_checkpoint


class Runner:
    """Makes logits, or fails."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.failure: Exception | None = None
        self.forgotten = 0

    def run(self, chunks: list[SequenceChunk]) -> Tensor:
        if self.failure is not None:
            raise self.failure
        self.tokens += [chunk.length for chunk in chunks]
        return torch.zeros(1, VOCABULARY)

    def forget(self, sequence: Sequence) -> None:
        self.forgotten += 1

    def operator_seconds(self) -> dict[str, float]:
        return {}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = build_checkpoint(tmp_path_factory.mktemp("model"), "llama")
    return load_model(BuiltInSettings(model_path=str(path), dtype="fp32", device="cpu"), lambda *_: None)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    """On a GPU on which a step takes 70 bytes beside the 1,000 that are there."""
    allocated = iter([1000])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: next(allocated))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 1070)
    return Runner()


def measured(loaded: LoadedModel, runner: Runner, device: str = "cuda", **more: Any) -> int:
    @contextmanager
    def probe(tokens: int) -> Iterator[Runner]:
        assert tokens == 99 or tokens == more.get("max_prefill_tokens")
        yield runner

    settings = BuiltInSettings(model_path="m", **more)
    return step_bytes(settings, replace(loaded, device=torch.device(device)), 100, probe)


@pytest.mark.parametrize(("prefill", "tokens"), [(24, 24), (2048, 99)])
def test_the_largest_step_is_measured(loaded: LoadedModel, runner: Runner, prefill: int, tokens: int) -> None:
    assert measured(loaded, runner, max_prefill_tokens=prefill) == 70
    assert (runner.tokens, runner.forgotten) == ([tokens], 1)


@pytest.mark.parametrize("more", [{"device": "cpu"}, {"kv_cache_memory_mb": 16}, {"kv_blocks": 5}])
def test_nothing_is_measured_for_nobody(loaded: LoadedModel, runner: Runner, more: dict[str, Any]) -> None:
    assert measured(loaded, runner, **more) == 0
    assert runner.tokens == []


def test_a_step_that_does_not_fit_is_an_error_that_says_what_to_set(loaded: LoadedModel, runner: Runner) -> None:
    runner.failure = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(ModelLoadError, match=r"99 prompt tokens .* lower option\.max_rolling_batch_prefill_tokens"):
        measured(loaded, runner)
