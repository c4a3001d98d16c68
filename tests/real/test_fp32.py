"""In fp32 trained weights give what transformers gives, however the engine goes about it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams, TokenEvent
from djl_python.engine.builtin.paged_batch import PagedRollingBatch
from tests.engines import run_to_end, step_tokens
from tests.real.conftest import opened
from tests.real.perplexity import all_threads
from tests.real.prompts import NEW_TOKENS, chat, generated, prompts

TOGETHER = 16
GREEDY = SamplingParams(max_new_tokens=NEW_TOKENS)


@pytest.fixture(scope="module")
def model(smol: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(smol, dtype=torch.float32)


@pytest.fixture(scope="module")
def batch(smol: Path) -> Iterator[PagedRollingBatch]:
    with opened(smol, dtype="fp32", max_batch_size=TOGETHER, threads=None) as opened_batch:
        yield opened_batch


@pytest.fixture(scope="module")
def asked(tokenizer: Any) -> list[list[int]]:
    return prompts(tokenizer)


@pytest.fixture(scope="module")
def expected(model: Any, asked: list[list[int]], tokenizer: Any) -> list[list[int]]:
    return generated(model, asked, tokenizer.pad_token_id)


def answers(
    batch: PagedRollingBatch, prompts: list[list[int]], sampling: SamplingParams = GREEDY
) -> list[list[TokenEvent]]:
    """What requests that come all at once are answered."""
    for number, prompt in enumerate(prompts):
        batch.add(SequenceRequest(prompt, sampling, id=number))
    events = run_to_end(batch)
    return [events[number] for number in range(len(prompts))]


def tokens(events: list[TokenEvent]) -> list[int]:
    return [event.token_id for event in events]


def test_the_native_kernels_run_it(batch: PagedRollingBatch) -> None:
    assert (batch.info.runner, batch.info.refusal) == ("native", "")


@pytest.mark.slow
def test_twenty_prompts_sixteen_at_once(
    batch: PagedRollingBatch, asked: list[list[int]], expected: list[list[int]]
) -> None:
    for number, prompt in enumerate(asked):
        batch.add(SequenceRequest(prompt, GREEDY, id=number))
    got: dict[int, list[int]] = {number: [] for number in range(len(asked))}
    most = 0
    while not batch.idle:
        for event in batch.step():
            got[event.request_id].append(event.token_id)
        most = max(most, batch.stats.step_sequences)
    assert most == TOGETHER
    assert list(got.values()) == expected


@pytest.mark.slow
def test_twenty_prompts_alone(batch: PagedRollingBatch, asked: list[list[int]], expected: list[list[int]]) -> None:
    assert [tokens(answers(batch, [prompt])[0]) for prompt in asked] == expected


@pytest.mark.slow
def test_preempted_sequences_go_on_where_they_were(
    batch: PagedRollingBatch, asked: list[list[int]], expected: list[list[int]], texts: list[list[int]]
) -> None:
    """One long sequence leaves the others a quarter of the blocks."""
    before = batch.stats.preemptions
    batch.add(SequenceRequest([*texts[0], *texts[1][:468]], SamplingParams(max_new_tokens=40, ignore_eos=True), id=-1))
    batch.step()
    assert [tokens(events) for events in answers(batch, asked[:TOGETHER])] == expected[:TOGETHER]
    assert batch.stats.preemptions > before


@pytest.mark.slow
def test_a_prefix_in_the_cache_changes_nothing(batch: PagedRollingBatch, texts: list[list[int]]) -> None:
    prompt = texts[2][:200]
    first = tokens(answers(batch, [prompt])[0])
    batch.add(SequenceRequest(prompt, GREEDY, id=0))
    second = tokens(batch.step())
    assert step_tokens(batch) == 200 - 192
    second += tokens(run_to_end(batch)[0])
    assert first == second
    assert len(first) == NEW_TOKENS


def test_log_probabilities_are_those_of_transformers(
    batch: PagedRollingBatch, model: Any, texts: list[list[int]]
) -> None:
    for text in (texts[3][:256], texts[-1][:256]):
        sampling = SamplingParams(max_new_tokens=1, ignore_eos=True, prompt_logprobs=5, top_logprobs=5)
        event = answers(batch, [text], sampling)[0][0]
        with torch.inference_mode(), all_threads():
            logprobs = model(torch.tensor([text])).logits[0].log_softmax(-1)
        assert event.prompt[0] == (None, ())
        rows = [*event.prompt[1:], (event.logprob, event.top)]
        followed_by = [*text[1:], event.token_id]
        for row, (logprob, top), token in zip(logprobs, rows, followed_by, strict=True):
            likeliest = [each for _, each in top]
            assert logprob == pytest.approx(float(row[token]), abs=2e-3)
            assert likeliest == pytest.approx(row.topk(5).values.tolist(), abs=2e-3)
            assert likeliest == pytest.approx(row[[i for i, _ in top]].tolist(), abs=2e-3)
            assert likeliest == sorted(likeliest, reverse=True)
        assert event.top[0] == (event.token_id, event.logprob)


@pytest.mark.slow
def test_draws_repeat_with_their_seeds_alone_and_among_others(
    batch: PagedRollingBatch, tokenizer: Any, asked: list[list[int]]
) -> None:
    prompt = chat(tokenizer, "Tell me a story about a dragon.")
    first, again, other = (
        tokens(
            answers(
                batch,
                [prompt],
                SamplingParams(max_new_tokens=NEW_TOKENS, do_sample=True, temperature=0.9, top_p=0.95, seed=seed),
            )[0]
        )
        for seed in (5, 5, 6)
    )
    assert first == again != other
    together = answers(
        batch,
        [prompt, *asked[:5]],
        SamplingParams(max_new_tokens=NEW_TOKENS, do_sample=True, temperature=0.9, top_p=0.95, seed=5),
    )
    assert tokens(together[0]) == first


@pytest.mark.slow
def test_drafts_change_nothing(smol: Path, tokenizer: Any, asked: list[list[int]], expected: list[list[int]]) -> None:
    """Some of these repeat themselves."""
    with opened(smol, dtype="fp32", speculative="ngram") as drafting:
        got = [tokens(events) for half in (asked[:10], asked[10:]) for events in answers(drafting, half)]
        assert drafting.stats.accepted_draft_tokens > 0
    assert got == expected
