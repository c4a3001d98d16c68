"""The oracle: what continuous batching generates is what `model.generate` generates."""

from __future__ import annotations

import random
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from djl_python.engine.loop import _step
from djl_python.engine.native.library import library
from djl_python.engine.paged_batch import PagedRollingBatch
from djl_python.engine.scheduler import Chunk
from djl_python.errors import ParameterError
from djl_python.types import FinishReason, Grammar, SamplingParams, TokenEvent
from tests.checkpoints import ARCHITECTURES, HYBRID, NATIVE, VOCABULARY, build_checkpoint
from tests.engines import damage_, generate, open_batch, random_requests, run_to_end, step_tokens
from tests.kernels import kernels_or_skip


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("llama"), "llama")


@pytest.mark.parametrize("kernels", ["native", "torch"])
@pytest.mark.parametrize("architecture", NATIVE)
def test_greedy_ids_are_those_of_generate_whatever_the_schedule(
    architecture: str, kernels: str, tmp_path: Path
) -> None:
    if kernels == "native":
        kernels_or_skip(library)
    path = build_checkpoint(tmp_path, architecture)
    batch = open_batch(path, kernels=kernels)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    requests = random_requests(20 if architecture in HYBRID else 50, seed=3)
    rng = random.Random(11)
    got: dict[int, list[int]] = {i: [] for i in range(len(requests))}
    waiting = list(enumerate(requests))
    while waiting or not batch.idle:
        for _ in range(rng.choice([0, 0, 1, 4])):
            if waiting:
                index, (prompt, new_tokens) = waiting.pop(0)
                batch.add(index, prompt, SamplingParams(max_new_tokens=new_tokens))
        if not batch.idle:
            for event in batch.step():
                got[event.request_id].append(event.token_id)
    expected = {i: generate(model, prompt, new_tokens) for i, (prompt, new_tokens) in enumerate(requests)}
    assert got == expected
    assert batch.stats.kv_blocks_used == batch.stats.running == batch.stats.waiting == 0


def test_paged_or_not_is_decided_by_what_the_model_computes(tmp_path: Path) -> None:
    paged = open_batch(build_checkpoint(tmp_path / "gemma2", "gemma2"))
    unpaged = open_batch(build_checkpoint(tmp_path / "gpt_neo", "gpt_neo"), kernels="torch")
    assert "KV cache" in paged.description
    assert "transformers' own cache" in unpaged.description
    hybrid = open_batch(build_checkpoint(tmp_path / "qwen3_5", "qwen3_5"))
    assert "and 16 states" in hybrid.description


@pytest.mark.parametrize("architecture", ["llama", "qwen3_5"])
def test_too_few_blocks_preempt_and_recompute(architecture: str, tmp_path: Path) -> None:
    """Six sequences that need 6 x 8 blocks share 14."""
    path = build_checkpoint(tmp_path, architecture)
    roomy, tight = open_batch(path), open_batch(path, max_model_len=128, kv_cache_memory_mb=1)
    states = tight.scheduler.blocks._states
    share = architecture not in HYBRID or states is not None
    tight.scheduler.blocks.__init__(14, 16, share=share, states=states)  # type: ignore[misc]
    for batch in (roomy, tight):
        for i in range(6):
            batch.add(i, [5 + i] * 20, SamplingParams(max_new_tokens=100, ignore_eos=True))
    expected, got = run_to_end(roomy), run_to_end(tight)
    assert tight.stats.preemptions > 0
    assert {i: [e.token_id for e in v] for i, v in got.items()} == {
        i: [e.token_id for e in v] for i, v in expected.items()
    }
    assert tight.stats.kv_blocks_used == 0


@pytest.mark.parametrize("architecture", HYBRID)
def test_a_conversation_goes_on_from_its_states(architecture: str, tmp_path: Path) -> None:
    """What was computed of it isn't computed again, and what follows is what follows without that."""
    kernels_or_skip(library)
    path = build_checkpoint(tmp_path, architecture)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    batch = open_batch(path)
    prompts = {0: [7 + i for i in range(53)], 1: [9 + 2 * i for i in range(40)]}
    computed: dict[int, int] = {}
    for turn in range(3):
        ids = {turn * 2 + i: prompt for i, prompt in prompts.items()}
        for number, prompt in ids.items():
            batch.add(number, prompt, SamplingParams(max_new_tokens=20, ignore_eos=True))
        got: dict[int, list[int]] = {number: [] for number in ids}
        while not batch.idle:
            for event in batch.step():
                got[event.request_id].append(event.token_id)
            for sequence in batch.scheduler.running:
                computed.setdefault(sequence.id, sequence.computed)
        for i, (number, prompt) in enumerate(ids.items()):
            expected = generate(model, prompt, 20)
            assert got[number][: len(expected)] == expected
            prompts[i] = [*prompt, *got[number], 30 + i, 31 + turn]
    # All but the last token of the turn before, and what one step adds.
    assert [computed[number] >= least for number, least in ((2, 72), (3, 59), (4, 94), (5, 81))] == [True] * 4


def test_a_long_prompt_never_stalls_the_others(llama: Path) -> None:
    batch = open_batch(llama, max_prefill_tokens=16)
    batch.add(1, [9, 8, 7], SamplingParams(max_new_tokens=50, ignore_eos=True))
    batch.step()
    batch.step()  # shows what a step without prompts takes
    batch.add(2, list(range(2, 202)), SamplingParams(max_new_tokens=1))
    for _ in range(200 // 16):
        assert [event.request_id for event in batch.step()] == [1]
        assert step_tokens(batch) == 16 + 1
    assert [event.request_id for event in batch.step()] == [1, 2]


def test_cancelled_sequences_leave_before_the_next_step(llama: Path) -> None:
    batch = open_batch(llama, max_batch_size=2)
    for i in range(4):
        batch.add(i, [3 + i] * 30, SamplingParams(max_new_tokens=60, ignore_eos=True))
    batch.step()
    assert (batch.stats.running, batch.stats.waiting) == (1, 3) or batch.stats.running == 2
    for i in (0, 1, 3, 99):
        batch.cancel(i)
    assert {event.request_id for _ in range(3) for event in batch.step()} <= {2}
    batch.cancel(2)
    assert batch.idle
    assert batch.stats.kv_blocks_used == 0


def test_the_stats_tell_of_the_last_step(llama: Path) -> None:
    batch = open_batch(llama)
    assert (batch.stats.step_s, batch.stats.step_sequences) == (0.0, 0)
    for i in range(3):
        batch.add(i, [3 + i, 9], SamplingParams(max_new_tokens=1))
    batch.step()
    assert batch.stats.running == 0
    assert batch.stats.step_sequences == 3
    assert batch.stats.step_s > 0


def test_the_first_token_tells_how_long_its_prompt_took(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps that read it, the first of which began when it had waited."""
    batch = open_batch(llama, max_prefill_tokens=16)
    batch.add(0, list(range(3, 83)), SamplingParams(max_new_tokens=3))
    began_s, steps_s = time.perf_counter(), []
    events: list[TokenEvent] = []
    while not batch.idle:
        events += batch.step()
        steps_s.append(batch.stats.step_s)
    first, *others = (event.running_s for event in events)
    assert len(steps_s) > 5 and others == [None, None]
    assert first is not None and sum(steps_s[:-3]) < first < time.perf_counter() - began_s


def test_while_a_grammar_compiles_no_step_is_told_of(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = open_batch(llama)
    batch.add(1, [3, 9], SamplingParams(max_new_tokens=1))
    batch.step()
    never: Future[Any] = Future()
    monkeypatch.setattr(batch.grammars, "compile", lambda grammar: never)
    batch.add(2, [3, 9], SamplingParams(max_new_tokens=1, grammar=Grammar("json_object")))
    assert not batch.idle
    assert batch.step() == []
    assert (batch.stats.step_s, batch.stats.step_sequences) == (0.0, 0)


def test_a_failing_sequence_costs_the_others_nothing(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = open_batch(llama)
    real = batch.runner.run

    def run(chunks: Any) -> Any:
        if any(266 in chunk.sequence.tokens for chunk in chunks):
            raise RuntimeError("cursed token")
        return real(chunks)

    monkeypatch.setattr(batch.runner, "run", run)
    for i in range(5):
        batch.add(i, [20 + i, 30, 40], SamplingParams(max_new_tokens=12, ignore_eos=True))
    batch.step()
    batch.add(66, [20, 266, 40], SamplingParams(max_new_tokens=12))
    events = steps_to_end(batch)
    assert [e.error for e in events.pop(66)] == ["generation failed: RuntimeError: cursed token"]
    assert {i: len(v) for i, v in events.items()} == dict.fromkeys(range(5), 11)
    assert batch.stats.kv_blocks_used == 0


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
        batch.add(number, prompt, drawn)
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


def test_what_a_step_gave_before_it_failed_is_not_lost(llama: Path) -> None:
    class Broken:
        words = 1

        def advance(self, token_id: int) -> bool:
            raise RuntimeError("a bug")

    batch = open_batch(llama)
    batch.add(0, [5, 6], SamplingParams(max_new_tokens=1, ignore_eos=True))
    batch.add(1, [5, 7], SamplingParams(max_new_tokens=9, ignore_eos=True))
    batch.add(2, [5, 8], SamplingParams(max_new_tokens=9, ignore_eos=True))
    batch._sequences[1].matcher = Broken()  # type: ignore[assignment]
    events = steps_to_end(batch)
    assert [event.finish for event in events[0]] == [FinishReason.LENGTH]
    assert [event.error for event in events[1]] == ["generation failed: RuntimeError: a bug"]
    assert len(events[2]) == 9


def test_a_step_that_fails_after_drawing_does_not_change_the_text(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was drawn in vain is drawn again, and not penalized as if it had been said."""

    def texts() -> list[list[int]]:
        for i in range(3):
            params = SamplingParams(max_new_tokens=20, ignore_eos=True, frequency_penalty=1.5, presence_penalty=1.0)
            batch.add(i, [5 + i, 9, 12], params)
        return [[event.token_id for event in events] for _, events in sorted(steps_to_end(batch).items())]

    batch = open_batch(llama)
    expected = texts()
    failing, advance = {4, 5, 11}, batch.scheduler.advance

    def failing_advance(chunks: list[Chunk]) -> None:
        generated = max(chunk.sequence.generated for chunk in chunks)
        if generated in failing:
            failing.remove(generated)
            raise RuntimeError("out of memory")
        advance(chunks)

    monkeypatch.setattr(batch.scheduler, "advance", failing_advance)
    assert texts() == expected
    assert not failing


def test_a_bad_word_that_the_model_cannot_say_is_none(llama: Path) -> None:
    """A tokenizer may have more tokens than the model has logits."""
    batch = open_batch(llama)
    words = ((VOCABULARY,), (7, VOCABULARY + 3))
    batch.add(0, [5, 6], SamplingParams(max_new_tokens=3, ignore_eos=True))
    batch.add(1, [5, 6], SamplingParams(max_new_tokens=3, ignore_eos=True, bad_words_ids=words))
    plain, banning = run_to_end(batch).values()
    assert [event.token_id for event in plain] == [event.token_id for event in banning]


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
    batch.add(1, [5, 6, 7], SamplingParams(max_new_tokens=4))
    with pytest.raises(RuntimeError, match="device-side assert"):
        _step(batch)


def test_a_request_that_fails_on_a_sound_gpu_ends_alone(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = open_batch(llama)
    monkeypatch.setattr(batch, "device", torch.device("cuda:0"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    failing(batch, monkeypatch, RuntimeError("CUDA error: invalid configuration argument"))
    batch.add(1, [5, 6, 7], SamplingParams(max_new_tokens=4))
    assert [event.error is not None for event in _step(batch)] == [True]
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
            batch.add(number, list(range(5 + number, 45)), SamplingParams(max_new_tokens=20, ignore_eos=True))
        while not batch.idle:
            for event in _step(batch):
                texts[-1][event.request_id].append(event.token_id)
    assert texts[0] == texts[1]
    assert 1 <= failures <= 5, "each failure takes one sequence less"
    assert together.count(3) > together.count(1)
    assert "no memory for 4 sequences at once: 3 until further notice" in caplog.text


def test_a_sequence_that_runs_out_of_memory_alone_ends(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = open_batch(llama)
    failing(batch, monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
    batch.add(1, [5, 6, 7], SamplingParams(max_new_tokens=4))
    [event] = _step(batch)
    assert event.error == "generation failed: OutOfMemoryError: CUDA out of memory"
    assert batch.idle


def test_a_prefix_in_the_cache_is_not_computed_again(llama: Path) -> None:
    batch = open_batch(llama, max_prefill_tokens=512)
    prompt = list(range(2, 102))
    batch.add(1, prompt, SamplingParams(max_new_tokens=5, ignore_eos=True))
    first = [e.token_id for e in run_to_end(batch)[1]]
    batch.add(2, prompt, SamplingParams(max_new_tokens=5, ignore_eos=True))
    second = [e.token_id for e in batch.step()]
    assert step_tokens(batch) == 100 - 96
    second += [e.token_id for e in run_to_end(batch)[2]]
    assert first == second


def test_length_of_prompt_and_context(llama: Path) -> None:
    batch = open_batch(llama, max_model_len=32)
    with pytest.raises(ParameterError, match="32 has room for 31"):
        batch.add(1, [5] * 32, SamplingParams(max_new_tokens=1))
    with pytest.raises(ParameterError, match="no tokens"):
        batch.add(1, [], SamplingParams(max_new_tokens=1))
    batch.add(1, [5] * 31, SamplingParams(max_new_tokens=10, ignore_eos=True))
    assert [e.finish for e in run_to_end(batch)[1]] == [FinishReason.LENGTH]


def test_ids_that_the_model_does_not_have_are_refused(llama: Path) -> None:
    """They would be places in memory that belong to something else."""
    batch, last = open_batch(llama), VOCABULARY - 1
    for ids, bias in (([-1, 5], 0), ([5, VOCABULARY], 0), ([5], -1), ([5], VOCABULARY)):
        with pytest.raises(ParameterError, match="outside the vocabulary of 320"):
            batch.add(1, ids, SamplingParams(max_new_tokens=1, logit_bias={3: 1.0, bias: 1.0}))
    assert batch.idle
    batch.add(1, [0, last], SamplingParams(max_new_tokens=2, ignore_eos=True, logit_bias={0: 1.0, last: 1.0}))
    assert len(run_to_end(batch)[1]) == 2


def test_prompt_logprobs_are_the_models_own_also_after_chunks(llama: Path) -> None:
    batch = open_batch(llama, max_prefill_tokens=16)
    prompt = list(range(40, 100))
    batch.add(1, prompt, SamplingParams(max_new_tokens=2, ignore_eos=True, prompt_logprobs=2))
    first, second = run_to_end(batch)[1]
    assert second.prompt == ()
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    with torch.no_grad():
        logprobs = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    assert first.prompt[0] == (None, ())
    for position in range(1, len(prompt)):
        logprob, top = first.prompt[position]
        assert logprob == pytest.approx(float(logprobs[position - 1, prompt[position]]), abs=1e-4)
        assert [i for i, _ in top] == logprobs[position - 1].topk(2).indices.tolist()
    assert first.logprob == pytest.approx(float(logprobs[-1].max()), abs=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *HYBRID])
def test_on_a_gpu_greedy_ids_are_those_of_generate(architecture: str, tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path, architecture)
    batch = open_batch(path, device="cuda", kv_cache_memory_mb=64)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    requests = random_requests(20, seed=5)
    for index, (prompt, new_tokens) in enumerate(requests):
        batch.add(index, prompt, SamplingParams(max_new_tokens=new_tokens))
    got = {index: [event.token_id for event in events] for index, events in run_to_end(batch).items()}
    assert got == {i: generate(model, prompt, new_tokens) for i, (prompt, new_tokens) in enumerate(requests)}
