"""What a request is answered does not depend on the others: their number, their failures, or their room."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from djl_python.core.errors import GenerationError
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams, TokenEvent
from djl_python.engine.batch import scheduler as scheduler_module
from djl_python.engine.builtin.paged_batch import PagedRollingBatch
from djl_python.engine.loop import run_step
from tests.checkpoints import VOCABULARY, build_checkpoint
from tests.engines import open_batch, run_to_end, sequence_of

PARAMS: list[dict[str, Any]] = [
    {"prompt_logprobs": 2, "top_logprobs": 3},
    {"do_sample": True, "temperature": 1.3},
    {"do_sample": True, "top_p": 0.8, "repetition_penalty": 1.2},
    {"frequency_penalty": 0.7, "presence_penalty": 0.4, "top_logprobs": 1},
    {"bad_words_ids": ((7,), (9, 12)), "logit_bias": {40: 3.0}},
    {"min_new_tokens": 9, "prompt_logprobs": 0, "stop_token_ids": tuple(range(0, VOCABULARY, 5))},
    {"do_sample": True, "typical_p": 0.8, "logprobs": False},
    {"logit_bias": {7: 30.0}, "prompt_logprobs": 1},  # repeats itself, so that drafts are right
    {"logit_bias": {7: 6.0, 9: 6.0, 12: 6.0}, "do_sample": True, "stop_token_ids": (12,)},  # ends within drafts
]
CURSED = VOCABULARY - 1


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("model"), "llama", sinks=True)


def requests(rng: random.Random, count: int) -> list[tuple[list[int], SamplingParams]]:
    """Prompts with common beginnings; a few have a token that no step survives."""
    trunk = [rng.randrange(2, CURSED) for _ in range(60)]
    made = []
    for number in range(count):
        prompt = trunk[: rng.randrange(60)] + [rng.randrange(2, CURSED) for _ in range(rng.randrange(1, 30))]
        if number % 8 == 5:
            prompt[-1] = CURSED
        params = PARAMS[number % len(PARAMS)]
        made.append((prompt, SamplingParams(max_new_tokens=rng.randrange(1, 40), seed=number, **params)))
    return made


def told(events: list[TokenEvent]) -> list[Any]:
    return [
        (e.token_id, e.finish, e.error, [i for i, _ in e.top], [[i for i, _ in t] for _, t in e.prompt]) for e in events
    ]


def numbers(events: list[TokenEvent]) -> list[float]:
    prompts = [entry for e in events for entry in e.prompt]
    return [
        *(-1.0 if each is None else each for each in [*(e.logprob for e in events), *(p for p, _ in prompts)]),
        *(p for top in [*(e.top for e in events), *(top for _, top in prompts)] for _, p in top),
    ]


def unreliable(rng: random.Random, real: Callable[..., Any], batch: PagedRollingBatch) -> Callable[..., Any]:
    """Fails now and then, before its work or after it; and always where a cursed sequence takes part."""

    def called(*given: Any) -> Any:
        together = len(batch.chunks) > 1
        cause = rng.choice([RuntimeError("a fault"), torch.OutOfMemoryError("no memory")])
        if together and rng.random() < 0.04:
            raise cause
        result = real(*given)
        if any(CURSED in c.sequence.tokens[: c.sequence.prompt_length] for c in batch.chunks):
            raise RuntimeError("a curse")
        if together and rng.random() < 0.04:
            raise cause
        return result

    return called


@pytest.mark.parametrize("settings", [{}, {"speculative": "ngram"}, {"kernels": "torch"}], ids=str)
def test_a_request_is_answered_as_if_alone_whatever_happens_to_others(
    settings: dict[str, Any], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few blocks, so that they preempt each other; steps that fail; requests that leave."""
    monkeypatch.setattr(scheduler_module, "STEPS_TO_TRUST", 5)
    rng = random.Random(8)
    asked = requests(rng, 40)
    one_by_one = open_batch(path, **settings)
    alone: list[list[TokenEvent]] = []
    for number, (prompt, sampling) in enumerate(asked):
        one_by_one.add(SequenceRequest(prompt, sampling, id=number))
        alone.append(run_to_end(one_by_one)[number])
    batch = open_batch(path, kv_blocks=14, max_batch_size=6, max_model_len=140, **settings)
    monkeypatch.setattr(batch.runner, "run", unreliable(rng, batch.runner.run, batch))
    monkeypatch.setattr(batch.sampler, "sample", unreliable(rng, batch.sampler.sample, batch))
    got: list[list[TokenEvent]] = [[] for _ in asked]
    left, coming = set(), list(range(len(asked)))
    while coming or not batch.idle:
        if coming and (batch.idle or rng.random() < 0.2):
            number = coming.pop(0)
            batch.add(SequenceRequest(*asked[number], id=number))
        for event in run_step(batch):
            assert event.request_id not in left
            got[event.request_id].append(event)
        if rng.random() < 0.01 and batch.scheduler.running:
            left.add(number := rng.choice([*batch.scheduler.running, *batch.scheduler.waiting]).id)
            batch.cancel(number)
    for number, (prompt, _) in enumerate(asked):
        mine, expected = got[number], alone[number]
        if CURSED in prompt:
            assert number in left or [event.error for event in mine] == ["generation failed: RuntimeError: a curse"]
            continue
        if number in left:
            expected = expected[: len(mine)]
        assert told(mine) == told(expected)
        assert numbers(mine) == pytest.approx(numbers(expected), abs=1e-4)
    stats = batch.stats
    assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)
    assert stats.preemptions > 0
    assert stats.accepted_draft_tokens > 20 or "speculative" not in settings
    assert 0 < len(left) < 10


class Lost:
    """A place in a grammar that can't be followed any further."""

    words = 1

    def accept_token(self, token_id: int) -> bool:
        raise GenerationError("the grammar can't be followed any further")


def test_a_grammar_that_can_not_be_followed_ends_its_request_and_no_step_fails(path: Path) -> None:
    batch = open_batch(path)
    for number in range(3):
        batch.add(SequenceRequest([5, 6 + number], SamplingParams(max_new_tokens=4, ignore_eos=True), id=number))
    sequence_of(batch, 1).matcher = Lost()  # type: ignore[assignment]
    events = run_to_end(batch)
    assert [(e.error, e.error_kind) for e in events[1]] == [("the grammar can't be followed any further", "generation")]
    assert (len(events[0]), len(events[2]), batch.stats.kv_blocks_used) == (4, 4, 0)
