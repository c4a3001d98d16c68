"""What fails in a step, and what that costs: the sequence whose fault it is, and nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import FinishReason, Grammar, SamplingParams, TokenEvent
from djl_python.engine.batch.chunk import SequenceChunk
from djl_python.engine.builtin.paged_batch import PagedRollingBatch
from djl_python.engine.loop import apply_message, run_step
from djl_python.engine.native.library import library
from tests.checkpoints import build_checkpoint
from tests.engines import damage_, open_batch, run_to_end, sequence_of
from tests.kernels import kernels_or_skip


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("llama"), "llama")


def test_a_failing_sequence_costs_the_others_nothing(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = open_batch(llama)
    real = batch.runner.run

    def run(chunks: Any) -> Any:
        if any(266 in chunk.sequence.tokens for chunk in chunks):
            raise RuntimeError("cursed token")
        return real(chunks)

    monkeypatch.setattr(batch.runner, "run", run)
    for i in range(5):
        batch.add(SequenceRequest([20 + i, 30, 40], SamplingParams(max_new_tokens=12, ignore_eos=True), id=i))
    batch.step()
    batch.add(SequenceRequest([20, 266, 40], SamplingParams(max_new_tokens=12), id=66))
    events = steps_to_end(batch)
    assert [e.error for e in events.pop(66)] == ["generation failed: RuntimeError: cursed token"]
    assert {i: len(v) for i, v in events.items()} == dict.fromkeys(range(5), 11)
    assert batch.stats.kv_blocks_used == 0


def test_a_grammar_that_there_is_no_thread_for_fails_its_sequence_alone(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(grammar: Grammar) -> None:
        raise RuntimeError("can't start new thread")

    batch = open_batch(llama)
    monkeypatch.setattr(batch.grammars, "compile", no_thread)
    [event] = apply_message(
        batch, SequenceRequest([5, 6], SamplingParams(max_new_tokens=4, grammar=Grammar("regex", "a*")), id=1)
    )
    assert event.error == "generation failed: RuntimeError: can't start new thread"
    assert batch.idle


@pytest.mark.parametrize(
    "settings",
    [{"kernels": "torch"}, {}, {"dtype": "bf16"}, {"quantize": "int8"}, {"quantize": "int4"}],
    ids=lambda settings: "-".join(settings.values()) or "native",
)
def test_scores_that_are_no_numbers_fail_their_sequence_alone(settings: dict[str, Any], tmp_path: Path) -> None:
    """As they are where numbers overflow. A token would hide it: whatever is generated, each step would choose it."""
    if settings.get("kernels") != "torch":
        kernels_or_skip(library)
    batch = open_batch(damage_(build_checkpoint(tmp_path, "llama"), 266), **settings)
    drawn = SamplingParams(do_sample=True, ignore_eos=True, max_new_tokens=5)
    for number, prompt in enumerate(([20, 30], [20, 266], [266, 30, 40], [20, 31])):
        batch.add(SequenceRequest(prompt, drawn, id=number))
    events = run_to_end(batch)
    for number in (1, 2):
        (event,) = events[number]
        assert event.error and event.error.startswith("the model's scores are not numbers (NaN)")
    assert [len(events[number]) for number in (0, 3)] == [5, 5]
    assert batch.stats.kv_blocks_used == 0


def steps_to_end(batch: PagedRollingBatch) -> dict[int, list[TokenEvent]]:
    """As `run_to_end`, with steps that fail handled as the engine's loop does."""
    events: dict[int, list[TokenEvent]] = {}
    while not batch.idle:
        try:
            new = batch.step()
        except RuntimeError as exc:
            new = batch.isolate(exc)
        for event in new:
            events.setdefault(event.request_id, []).append(event)
    return events


def test_tokens_of_a_step_that_fails_later_are_not_lost(llama: Path) -> None:
    class Broken:
        words = 1

        def accept_token(self, token_id: int) -> bool:
            raise RuntimeError("a bug")

    batch = open_batch(llama)
    batch.add(SequenceRequest([5, 6], SamplingParams(max_new_tokens=1, ignore_eos=True), id=0))
    batch.add(SequenceRequest([5, 7], SamplingParams(max_new_tokens=9, ignore_eos=True), id=1))
    batch.add(SequenceRequest([5, 8], SamplingParams(max_new_tokens=9, ignore_eos=True), id=2))
    sequence_of(batch, 1).matcher = Broken()  # type: ignore[assignment]
    events = steps_to_end(batch)
    assert [event.finish for event in events[0]] == [FinishReason.LENGTH]
    assert [event.error for event in events[1]] == ["generation failed: RuntimeError: a bug"]
    assert len(events[2]) == 9


def test_a_step_that_fails_after_drawing_does_not_change_the_text(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was drawn in vain is drawn again, and not penalized as if it had been said."""

    def texts() -> list[list[int]]:
        for i in range(3):
            params = SamplingParams(max_new_tokens=20, ignore_eos=True, frequency_penalty=1.5, presence_penalty=1.0)
            batch.add(SequenceRequest([5 + i, 9, 12], params, id=i))
        return [[event.token_id for event in events] for _, events in sorted(steps_to_end(batch).items())]

    batch = open_batch(llama)
    expected = texts()
    failing, advance = {4, 5, 11}, batch.scheduler.mark_computed

    def failing_advance(chunks: list[SequenceChunk]) -> None:
        generated = max(chunk.sequence.generated for chunk in chunks)
        if generated in failing:
            failing.remove(generated)
            raise RuntimeError("out of memory")
        advance(chunks)

    monkeypatch.setattr(batch.scheduler, "mark_computed", failing_advance)
    assert texts() == expected
    assert not failing


def failing(batch: PagedRollingBatch, monkeypatch: pytest.MonkeyPatch, cause: Exception) -> None:
    """Have every step that computes something fail."""

    def run(chunks: Any) -> Any:
        raise cause

    monkeypatch.setattr(batch.runner, "run", run)


def test_a_gpu_that_fails_for_good_ends_the_engine(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device-side assertion: whatever is asked of the device from then on raises."""
    batch = open_batch(llama)
    broken = RuntimeError("CUDA error: device-side assert triggered")

    def synchronize(device: torch.device) -> None:
        raise broken

    monkeypatch.setattr(batch, "device", torch.device("cuda:0"))
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    failing(batch, monkeypatch, broken)
    batch.add(SequenceRequest([5, 6, 7], SamplingParams(max_new_tokens=4), id=1))
    with pytest.raises(RuntimeError, match="device-side assert"):
        run_step(batch)


def test_a_request_that_fails_on_a_sound_gpu_ends_alone(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = open_batch(llama)
    monkeypatch.setattr(batch, "device", torch.device("cuda:0"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    failing(batch, monkeypatch, RuntimeError("CUDA error: invalid configuration argument"))
    batch.add(SequenceRequest([5, 6, 7], SamplingParams(max_new_tokens=4), id=1))
    assert [event.error is not None for event in run_step(batch)] == [True]
    assert batch.idle


@pytest.mark.parametrize("architecture", ["llama", "qwen3_5"])
def test_when_memory_runs_out_fewer_run_at_once_and_the_text_stays(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory for three sequences of eight; a hybrid's states are halfway through the step when it fails."""
    path = build_checkpoint(tmp_path, architecture)
    roomy, tight = (open_batch(path, kernels="torch") for _ in range(2))
    real, failures, together = tight.runner.run, 0, []

    def run(chunks: Any) -> Any:
        nonlocal failures
        logits = real(chunks)
        together.append(len(chunks))
        if len(chunks) > 3:
            failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return logits

    monkeypatch.setattr(tight.runner, "run", run)
    texts: list[dict[int, list[int]]] = []
    for batch in (roomy, tight):
        texts.append({number: [] for number in range(8)})
        for number in range(8):
            batch.add(
                SequenceRequest(
                    list(range(5 + number, 45)), SamplingParams(max_new_tokens=20, ignore_eos=True), id=number
                )
            )
        while not batch.idle:
            for event in run_step(batch):
                texts[-1][event.request_id].append(event.token_id)
    assert texts[0] == texts[1]
    assert 1 <= failures <= 5, "each failure takes one sequence less"
    assert together.count(3) > together.count(1)
    assert "no memory for 4 sequences at once: 3 until further notice" in caplog.text


def test_a_sequence_that_runs_out_of_memory_alone_ends(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = open_batch(llama)
    failing(batch, monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
    batch.add(SequenceRequest([5, 6, 7], SamplingParams(max_new_tokens=4), id=1))
    [event] = run_step(batch)
    assert event.error == "generation failed: OutOfMemoryError: CUDA out of memory"
    assert batch.idle
