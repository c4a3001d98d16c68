"""The oracle: what continuous batching generates is what `model.generate` generates."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from djl_python.core.errors import ParameterError
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import FinishReason, Grammar, SamplingParams, TokenEvent
from djl_python.engine.native.library import library
from tests.checkpoints import ARCHITECTURES, HYBRID, NATIVE, OF_EACH_KIND, REPRESENTATIVE, VOCABULARY, build_checkpoint
from tests.engines import generate, greedy, open_batch, random_requests, reference_model, run_to_end, step_tokens
from tests.kernels import kernels_or_skip


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("llama"), "llama")


def ways() -> Iterator[Any]:
    """Representative architectures on the native kernels; one of each kind also without sinks and on torch; or all."""
    for architecture in NATIVE:
        dear = () if architecture in OF_EACH_KIND else pytest.mark.slow
        rare = () if architecture in REPRESENTATIVE else pytest.mark.slow
        yield pytest.param(architecture, "native", True, id=f"{architecture}-native-sinks", marks=rare)
        yield pytest.param(architecture, "native", False, id=f"{architecture}-native", marks=dear)
        yield pytest.param(architecture, "torch", True, id=f"{architecture}-torch", marks=dear)
    for architecture in sorted((ARCHITECTURES | HYBRID).keys() - NATIVE.keys()):  # with an old transformers
        yield pytest.param(architecture, "torch", True, id=f"{architecture}-torch")


@pytest.mark.parametrize(("architecture", "kernels", "sinks"), [*ways()])
def test_greedy_ids_are_those_of_generate_whatever_the_schedule(
    architecture: str, kernels: str, sinks: bool, tmp_path: Path
) -> None:
    if kernels == "native":
        kernels_or_skip(library)
    path = build_checkpoint(tmp_path, architecture, sinks=sinks)
    batch = open_batch(path, kernels=kernels)
    model = reference_model(path)
    requests = random_requests(20 if architecture in HYBRID else 50, seed=3)
    rng = random.Random(11)
    got: dict[int, list[int]] = {i: [] for i in range(len(requests))}
    waiting = list(enumerate(requests))
    while waiting or not batch.idle:
        for _ in range(rng.choice([0, 0, 1, 4])):
            if waiting:
                index, (prompt, new_tokens) = waiting.pop(0)
                batch.add(SequenceRequest(prompt, SamplingParams(max_new_tokens=new_tokens), id=index))
        if not batch.idle:
            for event in batch.step():
                got[event.request_id].append(event.token_id)
    assert got == {i: greedy(model, prompt, got[i], new_tokens) for i, (prompt, new_tokens) in enumerate(requests)}
    assert batch.stats.kv_blocks_used == batch.stats.running == batch.stats.waiting == 0


@pytest.mark.parametrize("architecture", ["llama", "gpt_neo", "qwen3_5"])
def test_the_oracle_in_one_pass_is_generate(architecture: str, tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path, architecture, sinks=True)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    for prompt, new_tokens in random_requests(10, seed=7):
        ids = generate(model, prompt, new_tokens)
        assert greedy(model, prompt, ids, new_tokens) == ids
        assert greedy(model, prompt, ids[:-1], new_tokens) == ids
        other = [*ids[:-1], (ids[-1] + 1) % VOCABULARY]
        assert greedy(model, prompt, other, new_tokens) != other


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
    roomy, tight = open_batch(path), open_batch(path, max_model_len=128, kv_blocks=14)
    for batch in (roomy, tight):
        for i in range(6):
            batch.add(SequenceRequest([5 + i] * 20, SamplingParams(max_new_tokens=100, ignore_eos=True), id=i))
    expected, got = run_to_end(roomy), run_to_end(tight)
    assert tight.stats.preemptions > 0
    assert {i: [e.token_id for e in v] for i, v in got.items()} == {
        i: [e.token_id for e in v] for i, v in expected.items()
    }
    assert tight.stats.kv_blocks_used == 0


@pytest.mark.parametrize("architecture", [name for name in HYBRID if name in NATIVE])
def test_a_conversation_goes_on_from_its_states(architecture: str, tmp_path: Path) -> None:
    """What was computed of it isn't computed again, and what follows is what follows without that."""
    kernels_or_skip(library)
    path = build_checkpoint(tmp_path, architecture, sinks=True)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    batch = open_batch(path)
    prompts = {0: [7 + i for i in range(53)], 1: [9 + 2 * i for i in range(40)]}
    computed: dict[int, int] = {}
    for turn in range(3):
        ids = {turn * 2 + i: prompt for i, prompt in prompts.items()}
        for number, prompt in ids.items():
            batch.add(SequenceRequest(prompt, SamplingParams(max_new_tokens=20, ignore_eos=True), id=number))
        got: dict[int, list[int]] = {number: [] for number in ids}
        while not batch.idle:
            for event in batch.step():
                got[event.request_id].append(event.token_id)
            for sequence in batch.scheduler.running:
                computed.setdefault(sequence.id, sequence.computed)
        for i, (number, prompt) in enumerate(ids.items()):
            expected = greedy(model, prompt, got[number], 20)
            assert got[number][: len(expected)] == expected
            prompts[i] = [*prompt, *got[number], 30 + i, 31 + turn]
    # All but the last token of the turn before, and what one step adds.
    assert [computed[number] >= least for number, least in ((2, 72), (3, 59), (4, 94), (5, 81))] == [True] * 4


def test_a_long_prompt_never_stalls_the_others(llama: Path) -> None:
    batch = open_batch(llama, max_prefill_tokens=16)
    batch.add(SequenceRequest([9, 8, 7], SamplingParams(max_new_tokens=50, ignore_eos=True), id=1))
    batch.step()
    batch.step()  # shows what a step without prompts takes
    batch.add(SequenceRequest(list(range(2, 202)), SamplingParams(max_new_tokens=1), id=2))
    for _ in range(200 // 16):
        assert [event.request_id for event in batch.step()] == [1]
        assert step_tokens(batch) == 16 + 1
    assert [event.request_id for event in batch.step()] == [1, 2]


def test_cancelled_sequences_leave_before_the_next_step(llama: Path) -> None:
    batch = open_batch(llama, max_batch_size=2)
    for i in range(4):
        batch.add(SequenceRequest([3 + i] * 30, SamplingParams(max_new_tokens=60, ignore_eos=True), id=i))
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
        batch.add(SequenceRequest([3 + i, 9], SamplingParams(max_new_tokens=1), id=i))
    batch.step()
    assert batch.stats.running == 0
    assert batch.stats.step_sequences == 3
    assert batch.stats.step_s > 0


def test_the_first_token_tells_how_long_its_prompt_took(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps that read it, the first of which began when it had waited."""
    batch = open_batch(llama, max_prefill_tokens=16)
    batch.add(SequenceRequest(list(range(3, 83)), SamplingParams(max_new_tokens=3), id=0))
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
    batch.add(SequenceRequest([3, 9], SamplingParams(max_new_tokens=1), id=1))
    batch.step()
    never: Future[Any] = Future()
    monkeypatch.setattr(batch.grammars, "compile", lambda grammar: never)
    batch.add(SequenceRequest([3, 9], SamplingParams(max_new_tokens=1, grammar=Grammar("json_object")), id=2))
    assert not batch.idle
    assert batch.step() == []
    assert (batch.stats.step_s, batch.stats.step_sequences) == (0.0, 0)


def test_a_bad_word_that_the_model_cannot_say_is_none(llama: Path) -> None:
    """A tokenizer may have more tokens than the model has logits."""
    batch = open_batch(llama)
    words = ((VOCABULARY,), (7, VOCABULARY + 3))
    batch.add(SequenceRequest([5, 6], SamplingParams(max_new_tokens=3, ignore_eos=True), id=0))
    batch.add(SequenceRequest([5, 6], SamplingParams(max_new_tokens=3, ignore_eos=True, bad_words_ids=words), id=1))
    plain, banning = run_to_end(batch).values()
    assert [event.token_id for event in plain] == [event.token_id for event in banning]


def test_a_prefix_in_the_cache_is_not_computed_again(llama: Path) -> None:
    batch = open_batch(llama, max_prefill_tokens=512)
    prompt = list(range(2, 102))
    batch.add(SequenceRequest(prompt, SamplingParams(max_new_tokens=5, ignore_eos=True), id=1))
    first = [e.token_id for e in run_to_end(batch)[1]]
    batch.add(SequenceRequest(prompt, SamplingParams(max_new_tokens=5, ignore_eos=True), id=2))
    second = [e.token_id for e in batch.step()]
    assert step_tokens(batch) == 100 - 96
    second += [e.token_id for e in run_to_end(batch)[2]]
    assert first == second


def test_length_of_prompt_and_context(llama: Path) -> None:
    batch = open_batch(llama, max_model_len=32)
    with pytest.raises(ParameterError, match="32 has room for 31"):
        batch.add(SequenceRequest([5] * 32, SamplingParams(max_new_tokens=1), id=1))
    with pytest.raises(ParameterError, match="no tokens"):
        batch.add(SequenceRequest([], SamplingParams(max_new_tokens=1), id=1))
    batch.add(SequenceRequest([5] * 31, SamplingParams(max_new_tokens=10, ignore_eos=True), id=1))
    assert [e.finish for e in run_to_end(batch)[1]] == [FinishReason.LENGTH]


def test_ids_that_the_model_does_not_have_are_refused(llama: Path) -> None:
    """They would be places in memory that belong to something else."""
    batch, last = open_batch(llama), VOCABULARY - 1
    for ids, bias in (([-1, 5], 0), ([5, VOCABULARY], 0), ([5], -1), ([5], VOCABULARY)):
        with pytest.raises(ParameterError, match="outside the vocabulary of 320"):
            batch.add(SequenceRequest(ids, SamplingParams(max_new_tokens=1, logit_bias={3: 1.0, bias: 1.0}), id=1))
    assert batch.idle
    batch.add(
        SequenceRequest(
            [0, last], SamplingParams(max_new_tokens=2, ignore_eos=True, logit_bias={0: 1.0, last: 1.0}), id=1
        )
    )
    assert len(run_to_end(batch)[1]) == 2


def test_prompt_logprobs_are_the_models_own_also_after_chunks(llama: Path) -> None:
    batch = open_batch(llama, max_prefill_tokens=16)
    prompt = list(range(40, 100))
    batch.add(SequenceRequest(prompt, SamplingParams(max_new_tokens=2, ignore_eos=True, prompt_logprobs=2), id=1))
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
    path = build_checkpoint(tmp_path, architecture, sinks=True)
    batch = open_batch(path, device="cuda", kv_cache_memory_mb=64)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    requests = random_requests(20, seed=5)
    for index, (prompt, new_tokens) in enumerate(requests):
        batch.add(SequenceRequest(prompt, SamplingParams(max_new_tokens=new_tokens), id=index))
    got = {index: [event.token_id for event in events] for index, events in run_to_end(batch).items()}
    assert got == {i: generate(model, prompt, new_tokens) for i, (prompt, new_tokens) in enumerate(requests)}
