"""Requests that need no more than tokens get those that they would get through all logits."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import FinishReason, SamplingParams, TokenEvent
from djl_python.engine.batch.pacing import MIN_TOKENS, PrefillPacer
from djl_python.engine.builtin.paged_batch import PagedRollingBatch
from djl_python.engine.native.library import library
from djl_python.engine.native.program.builders import rescoring
from djl_python.engine.native.program.runner import NativeModelRunner
from djl_python.engine.sampling.row_sampler import SampledTokens
from tests.checkpoints import HYBRID, VOCABULARY, build_checkpoint, representative_first
from tests.engines import damage_, open_batch, run_to_end
from tests.kernels import kernels_or_skip

NEW_TOKENS = 12


@pytest.fixture(autouse=True)
def _small_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels_or_skip(library)
    monkeypatch.setattr(rescoring, "LEAST_WEIGHTS", 0)  # of heads: the tests' are small


@pytest.fixture(autouse=True)
def _steps_that_no_clock_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch cuts prompts in the same places: where kernels multiply tiles, a row's last bits tell whether its step
    had seven rows (DECISIONS 56)."""
    monkeypatch.setattr(PrefillPacer, "budget", lambda *_: MIN_TOKENS)


@pytest.fixture
def picked_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each step has found without logits."""
    counts: list[int] = []
    ask = NativeModelRunner.pick

    def pick(self: NativeModelRunner, *given: Any) -> SampledTokens | Tensor | None:
        picked = ask(self, *given)
        counts.append(len(picked.token_ids) if isinstance(picked, SampledTokens) else 0)
        return picked

    monkeypatch.setattr(NativeModelRunner, "pick", pick)
    return counts


def prompts() -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.randrange(2, VOCABULARY) for _ in range(length)] for length in (5, 40, 1, 17, 70, 9)]


#: What needs all logits.
ALL: dict[str, Any] = {"logit_bias": {0: 0.0}}
#: Some greedy, some not.
MIXED: list[dict[str, Any]] = [{"do_sample": n % 3 != 1, "temperature": 0.5 + n / 4, "seed": 90 + n} for n in range(6)]


def answers(batch: PagedRollingBatch, *changes: dict[str, Any], **params: Any) -> dict[int, list[TokenEvent]]:
    for number, prompt in enumerate(prompts()):
        own = changes[number] if number < len(changes) else {}
        batch.add(
            SequenceRequest(
                prompt, SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True, **{**params, **own}), id=number
            )
        )
    return run_to_end(batch)


def ids(events: dict[int, list[TokenEvent]]) -> dict[int, list[int]]:
    return {number: [event.token_id for event in each] for number, each in events.items()}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("model"), "llama", torch.bfloat16, sinks=True)


@pytest.mark.parametrize(
    "architecture", representative_first(["llama", "gemma2", "opt", "gpt2", "phi", "qwen3_moe", *HYBRID])
)
def test_tokens_are_those_that_come_with_all_logits(
    architecture: str, tmp_path: Path, picked_counts: list[int]
) -> None:
    path = build_checkpoint(tmp_path, architecture, torch.bfloat16, sinks=True)
    for params in ([], MIXED):
        expected = ids(answers(open_batch(path, dtype="bf16"), *params, **ALL))
        assert not picked_counts
        assert ids(answers(open_batch(path, dtype="bf16"), *params, logprobs=False)) == expected
        assert sum(picked_counts) == NEW_TOKENS * len(expected)
        picked_counts.clear()


@pytest.mark.parametrize(("sinks", "near"), [(False, 0.02), (True, 0.25)])
def test_picked_tokens_with_bounds_and_penalties_equal_those_of_all_logits(
    sinks: bool, near: float, tmp_path: Path, picked_counts: list[int]
) -> None:
    """On SmolLM2, log-probabilities are within 0.013."""
    path = build_checkpoint(tmp_path, "llama", torch.bfloat16, sinks=sinks)
    penalized = {"repetition_penalty": 1.2, "frequency_penalty": 0.1, "presence_penalty": 0.1}
    bounds: list[dict[str, Any]] = [{"top_k": 2}, {"top_p": 0.3}, {"min_p": 0.5}, {"top_k": 3, "top_p": 0.5}, {}, {}]
    params = [{"seed": n, "do_sample": n < 5, **each} for n, each in enumerate(bounds)]
    params[0].update(penalized)
    params[5].update(penalized)
    expected = answers(open_batch(path, dtype="bf16"), *params, **ALL)
    got = answers(open_batch(path, dtype="bf16"), *params)
    assert ids(got) == ids(expected)
    assert sum(picked_counts) > NEW_TOKENS * len(expected) / 2
    pairs = [(a.logprob, b.logprob) for n in got for a, b in zip(got[n], expected[n], strict=True)]
    assert all(a is not None and b is not None and abs(a - b) < near for a, b in pairs)


@pytest.mark.parametrize(
    "other",
    [
        {"do_sample": True, "typical_p": 0.9, "seed": 4},
        {"do_sample": True, "top_k": 65, "seed": 4},
        {"do_sample": True, "temperature": 1e-3, "seed": 4},
        {"logprobs": True, "top_logprobs": 65},
        {"repetition_penalty": 0.9},
        {"presence_penalty": -0.1},
        {"frequency_penalty": -0.1},
        {"logit_bias": {5: 9.0}},
        {"min_new_tokens": 3},
        {"prompt_logprobs": 1},
    ],
)
def test_beside_one_that_needs_logits_all_are_computed(
    path: Path, other: dict[str, Any], picked_counts: list[int]
) -> None:
    expected = answers(open_batch(path, dtype="bf16"), ALL, other)
    picked_counts.clear()
    got = answers(open_batch(path, dtype="bf16"), {}, {"logprobs": False, **other}, logprobs=False)
    assert ids(got) == ids(expected)
    assert [event.top for event in got[1]] == [event.top for event in expected[1]]
    assert [event.prompt for event in got[1]] == [event.prompt for event in expected[1]]
    assert sum(picked_counts) < NEW_TOKENS * len(expected)  # but once it has ended, or while it waits, they are not


@pytest.mark.parametrize("how", ["ngram", "draft"])
def test_drafts_are_proposed_and_checked_without_logits(
    path: Path, how: str, picked_counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[PagedRollingBatch] = []
    step = PagedRollingBatch.step

    def count(batch: PagedRollingBatch) -> list[TokenEvent]:
        steps.append(batch)
        return step(batch)

    monkeypatch.setattr(PagedRollingBatch, "step", count)
    settings = {"dtype": "bf16", "speculative": how, "draft_model_path": str(path)}
    for params in ([], MIXED):
        expected = ids(answers(open_batch(path, dtype="bf16"), *params, **ALL))
        batch = open_batch(path, **settings)
        assert ids(answers(batch, *params, logprobs=False)) == expected
        assert picked_counts and all(picked_counts)
        assert how == "ngram" or batch.stats.accepted_draft_tokens > 0
        assert (len(picked_counts) > steps.count(batch)) == (how == "draft")
        picked_counts.clear()


@pytest.mark.parametrize("settings", [{"dtype": "fp32"}, {"dtype": "bf16", "quantize": "int8"}])
def test_other_heads_compute_all_logits(path: Path, settings: dict[str, Any], picked_counts: list[int]) -> None:
    """fp32 is what others are measured by, and in 8 bits the head is no slower."""
    answers(open_batch(path, **settings), logprobs=False)
    assert picked_counts and not any(picked_counts)


def test_scores_that_are_no_numbers_end_their_request_alone(tmp_path: Path) -> None:
    path = damage_(build_checkpoint(tmp_path, "llama"), 300)
    batch = open_batch(path, dtype="bf16")
    for number, prompt in enumerate(([5, 300, 7], [5, 6, 7])):
        batch.add(SequenceRequest(prompt, SamplingParams(max_new_tokens=4, ignore_eos=True, logprobs=False), id=number))
    got = run_to_end(batch)
    assert [event.error is not None for event in got[0]] == [True]
    assert [event.finish for event in got[1]] == [None, None, None, FinishReason.LENGTH]
