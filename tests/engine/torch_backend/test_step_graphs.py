"""Recorded steps, on a device where a recording is the function itself: which are replayed, and what they give."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams
from djl_python.engine.builtin.paged_batch import PagedRollingBatch
from djl_python.engine.torch_backend.paged_runner import PagedModelRunner
from djl_python.engine.torch_backend.step_graphs import Recording
from tests.checkpoints import build_checkpoint
from tests.engines import generate, open_batch, random_requests, reference_model, run_to_end
from tests.token_attention import by_token

SIZES = (1, 4, 16)


class Recorder:
    """Counts replays, by the position of a recording among all."""

    def __init__(self) -> None:
        self.replays: list[int] = []

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        number = len(self.replays)
        self.replays.append(0)
        work()

        def replay() -> None:
            self.replays[number] += 1
            work()

        return replay


def opened(path: Path, rows: int = 24, **settings: Any) -> tuple[PagedRollingBatch, Recorder]:
    recorder = Recorder()
    batch = open_batch(path, kernels="torch", **settings)
    assert isinstance(batch.runner, PagedModelRunner)
    batch.runner.record_steps(SIZES, Recording(by_token, recorder.record), rows, batch.kv_blocks)
    return batch, recorder


@pytest.mark.parametrize("speculative", ["none", "ngram"])
@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt_oss"])  # windows, soft caps, sinks
def test_greedy_ids_are_those_of_generate(architecture: str, speculative: str, tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path, architecture, sinks=True)
    batch, recorder = opened(path, speculative=speculative)
    model = reference_model(path)
    requests = random_requests(16, seed=4)
    for number, (prompt, new_tokens) in enumerate(requests):
        batch.add(SequenceRequest(prompt, SamplingParams(max_new_tokens=new_tokens), id=number))
    generated = {number: [event.token_id for event in events] for number, events in run_to_end(batch).items()}
    assert generated == {number: generate(model, prompt, count) for number, (prompt, count) in enumerate(requests)}
    assert sum(map(bool, recorder.replays)) > 1, "steps of several sizes were replayed"


def test_steps_larger_than_a_recording_are_launched(tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path, "llama")
    batch, recorder = opened(path, rows=2)

    def steps(prompt: list[int], **sampling: Any) -> list[int]:
        batch.add(SequenceRequest(prompt, SamplingParams(max_new_tokens=1, **sampling), id=0))
        run_to_end(batch)
        counted, recorder.replays[:] = recorder.replays[::-1], [0] * len(SIZES)
        return counted

    assert steps([5, 6, 7]) == [0, 1, 0]
    assert steps(list(range(5, 21))) == [0, 0, 1]
    assert steps(list(range(30, 50))) == [0, 0, 0], "more tokens than are recorded"
    assert steps([8, 9], prompt_logprobs=0) == [0, 1, 0]
    assert steps([9, 8, 7], prompt_logprobs=0) == [0, 0, 0], "more rows of logits than are recorded"


def test_logits_are_those_of_a_step_that_is_launched(tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path, "llama")
    told = []
    for batch in (opened(path)[0], open_batch(path, kernels="torch")):
        for number in range(3):
            batch.add(
                SequenceRequest(
                    [number + 5, 9, 7], SamplingParams(max_new_tokens=9, top_logprobs=3, prompt_logprobs=2), id=number
                )
            )
        told.append([event for events in run_to_end(batch).values() for event in events])
    for mine, other in zip(*told, strict=True):
        assert mine.token_id == other.token_id
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [token for token, _ in mine.top] == [token for token, _ in other.top]


def test_a_recorded_runner_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    """An engine collects no garbage while it loads, and later none of what was there by then."""
    batch = open_batch(build_checkpoint(tmp_path, "llama"), kernels="torch")
    runner = copy.copy(batch.runner)
    assert isinstance(runner, PagedModelRunner)

    def record(work: Callable[[], None]) -> Callable[[], None]:
        work()
        return lambda: None

    gc.disable()
    try:
        runner.record_steps(SIZES, Recording(by_token, record), 24, batch.kv_blocks)
        seen = weakref.ref(runner)
        del runner
        assert seen() is None
    finally:
        gc.enable()
