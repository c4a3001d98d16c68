"""What is chosen from rows of logits: the same, to rounding, whoever chooses."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from djl_python.core.types import SamplingParams
from djl_python.engine.batch.sequence import NO_TOKEN, Sequence
from djl_python.engine.native.program.sampling import NativeRowSampler
from djl_python.engine.native.thread_pool import ThreadPool
from djl_python.engine.sampling.penalties import Occurrences
from djl_python.engine.sampling.row_sampler import RowSampler, SampledTokens, SamplingRequest
from djl_python.engine.sampling.sampling_plan import SamplingPlan
from djl_python.engine.sampling.torch_row_sampler import TorchRowSampler
from tests.engine.sampling.gumbel import drawn
from tests.operations import Operations

VOCABULARIES = [5, 64, 1500, 20_000, 20_032]
DRAWS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"top_k": 5},
    {"top_k": 700, "top_p": 0.6, "temperature": 1.4},
    {"top_p": 0.8},
    {"min_p": 0.1, "temperature": 0.9},
    {"typical_p": 0.5, "temperature": 0.6},
    {"top_k": 20, "typical_p": 0.9, "min_p": 0.01},
    {"repetition_penalty": 1.5, "presence_penalty": 0.4},
    {"frequency_penalty": 1.0, "typical_p": 0.7},
]

#: Bounds whose draws `gumbel.drawn` knows.
NOISY: list[dict[str, Any]] = [
    *({}, {"top_k": 5}, {"top_k": 700, "top_p": 0.6}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_p": 0.7, "min_p": 0.03}),
    {"top_k": 64, "top_p": 0.99, "min_p": 0.05},
]


@pytest.fixture(params=["torch", "native"])
def row_sampler(request: pytest.FixtureRequest) -> RowSampler:
    return TorchRowSampler() if request.param == "torch" else request.getfixturevalue("native_row_sampler")


def rows_of(vocabulary: int) -> Tensor:
    generator = torch.Generator().manual_seed(vocabulary)
    scores = torch.rand(6, vocabulary, generator=generator)
    scores[1].sub_(torch.arange(vocabulary) / 100)  # the best lie together, at the beginning
    scores[2].add_(torch.arange(vocabulary) / 100)  # or the end, where the last block is not whole
    scores[3, 3:] = float("-inf")
    scores[4, :-3] = float("-inf")
    scores[5].mul_(40)
    return scores


def choose(
    row_sampler: RowSampler,
    logits: Tensor,
    params: list[dict[str, Any]],
    changed: Tensor | None = None,
    positions: list[int] | None = None,
) -> SampledTokens:
    sampling = [SamplingParams(max_new_tokens=1, **each) for each in params]
    plan = SamplingPlan(list(range(len(params))), sampling, torch.device("cpu"))
    occurred = [Occurrences(Sequence(row, [3, 7, 8, 7], 2, sampling[row])) for row in plan.penalized]
    return row_sampler.choose(logits, changed, SamplingRequest(plan, positions or [7] * len(params), occurred))


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("width", [1, 5, 64, 1024])
def test_alternatives_are_those_of_topk(row_sampler: RowSampler, vocabulary: int, width: int) -> None:
    logits = rows_of(vocabulary)
    width = min(width, vocabulary)
    sampled = row_sampler.look_up(logits, [0, 1, 2, 0, vocabulary - 1, 3], width)
    ids = torch.tensor([[token for token, _ in top] for top in sampled.tops])
    logprobs = torch.tensor([[logprob for _, logprob in top] for top in sampled.tops])
    expected = logits.double().log_softmax(-1).float()
    assert torch.equal(logits.gather(1, ids), logits.topk(width).values)
    assert torch.allclose(logprobs, expected.gather(1, ids), atol=2e-6, rtol=1e-6)
    assert all(len(set(row)) == width for row in ids.tolist())
    own = expected[torch.arange(6), sampled.token_ids]
    assert torch.allclose(torch.tensor(sampled.logprobs), own, atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_the_best_is_chosen(row_sampler: RowSampler, vocabulary: int) -> None:
    logits = rows_of(vocabulary)
    assert choose(row_sampler, logits, [{}] * 6).token_ids == logits.argmax(-1).tolist()


@pytest.mark.parametrize("bound", [{"top_p": 0.3}, {"min_p": 0.9}, {"top_k": 1}], ids=str)
def test_the_best_is_drawn_where_nothing_else_may_be(row_sampler: RowSampler, bound: dict[str, Any]) -> None:
    logits = torch.tensor([1.0, 2.0, 0.0, -1.0]).repeat(40, 1)
    sampled = choose(row_sampler, logits, [{"do_sample": True, "seed": seed, **bound} for seed in range(40)])
    assert set(sampled.token_ids) == {1}


def test_logprobs_near_zero_are_exact(row_sampler: RowSampler) -> None:
    logits = torch.full((1, 1000), 1e3)
    logits[0, 7] += 12  # nearly certain; next to 1012, fp32 knows steps of 6e-5
    exact = logits.double().log_softmax(-1)[0, 7]
    assert row_sampler.look_up(logits, [7], 0).logprobs[0] == pytest.approx(float(exact), abs=2e-6)


def test_everybody_gets_the_alternatives_he_asked_for(row_sampler: RowSampler) -> None:
    wanted = [{"top_logprobs": 3}, {}, {"top_logprobs": 1, "do_sample": True}]
    sampled = choose(row_sampler, rows_of(1500)[:3], wanted)
    assert [len(top) for top in sampled.tops] == [3, 0, 1]


@pytest.mark.parametrize("draw", [{}, {"do_sample": True}, {"do_sample": True, "typical_p": 0.9}], ids=str)
def test_changed_rows_choose_from_their_own_scores_and_tell_what_the_model_thought(
    row_sampler: RowSampler, draw: dict[str, Any]
) -> None:
    logits = rows_of(1500)[:3]
    changed = torch.full((2, 1500), float("-inf"))
    changed[0, 1234], changed[1, 77] = 3.0, 0.0
    own = {"bad_words_ids": ((1,),), **draw}
    sampled = choose(row_sampler, logits, [own, {}, own], changed)
    assert sampled.token_ids == [1234, int(logits[1].argmax()), 77]
    expected = logits.log_softmax(-1)
    assert sampled.logprobs == pytest.approx([float(expected[i, t]) for i, t in enumerate(sampled.token_ids)], abs=1e-5)


def test_penalties_are_of_the_choice_not_of_the_log_probability(row_sampler: RowSampler) -> None:
    """Log-probabilities are the model's own, also where scores were changed, whether drawn or not."""
    logits = torch.zeros(4, 1000)
    logits[:, 7], logits[:, 3], logits[:, 500] = 9.0, 8.0, 7.0
    changed = logits[2:].clone()
    changed[:, 9] = 8.5
    banned: dict[str, Any] = {"bad_words_ids": ((1,),), "repetition_penalty": 2.0}
    drawn: dict[str, Any] = {"do_sample": True, "temperature": 0.01}
    params = [{"presence_penalty": 1.5}, {"repetition_penalty": 2.0, **drawn}, banned, {**banned, **drawn}]
    sampled = choose(row_sampler, logits, params, changed)
    assert sampled.token_ids == [3, 500, 9, 9]
    expected = logits.log_softmax(-1)
    assert sampled.logprobs == pytest.approx([float(expected[0, token]) for token in sampled.token_ids], abs=1e-5)


def test_scores_are_what_they_were_and_the_choice_is_the_same_whoever_reads_log_probabilities(
    row_sampler: RowSampler,
) -> None:
    logits, changed = rows_of(1500).repeat(4, 1), rows_of(1500)[:4] - 1
    before = logits.clone(), changed.clone()
    params: list[dict[str, Any]] = [{"do_sample": i % 3 > 0, "seed": i, **DRAWS[i % len(DRAWS)]} for i in range(24)]
    for each in params[10:14]:
        each["bad_words_ids"] = ((1,),)
    read = choose(row_sampler, logits, params, changed)
    if isinstance(row_sampler, NativeRowSampler):  # torch penalizes a copy of what nobody else has, where it is
        assert torch.equal(logits, before[0]) and torch.equal(changed, before[1])
    unread = choose(row_sampler, before[0], [{**each, "logprobs": False} for each in params], before[1])
    assert read.token_ids == unread.token_ids


@pytest.mark.parametrize("params", DRAWS, ids=str)
def test_a_row_is_read_alike_alone_and_among_others(row_sampler: RowSampler, params: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(40, 20_000, generator=generator) * 3  # enough for several threads
    mixture = [{"do_sample": True, "seed": i, **DRAWS[i % len(DRAWS)]} for i in range(40)]
    mixture[17] = {"do_sample": True, "seed": 99, "top_logprobs": 2, **params}
    among = choose(row_sampler, logits, mixture)
    alone = choose(row_sampler, logits[17:18].clone(), mixture[17:18])
    assert (among.token_ids[17], among.logprobs[17], among.tops[17]) == (
        alone.token_ids[0],
        alone.logprobs[0],
        alone.tops[0],
    )


@pytest.mark.parametrize("temperature", [0.002, 0.5, 1.4])
@pytest.mark.parametrize("params", NOISY, ids=str)
def test_the_permitted_token_of_the_greatest_sum_with_noise_is_drawn(
    row_sampler: RowSampler, params: dict[str, Any], temperature: float
) -> None:
    """But for a few where rounding decides."""
    generator = torch.Generator().manual_seed(3)
    row = torch.randn(5000, generator=generator) * 2 * temperature + 3 / temperature
    seeds = [{"do_sample": True, **params, "temperature": temperature, "seed": seed} for seed in range(400)]
    token_ids = choose(row_sampler, row.expand(400, -1).contiguous(), seeds).token_ids
    expected = [drawn(row, SamplingParams(max_new_tokens=1, **each), 7) for each in seeds]
    assert sum(a == b for a, b in zip(token_ids, expected, strict=True)) >= 398
    assert len(set(token_ids)) > 4


@pytest.mark.parametrize("temperature", [0.005, 0.4, 1.0, 2.5])
@pytest.mark.parametrize("of", ["one sequence", "many sequences"])
def test_tokens_are_drawn_as_often_as_they_are_likely(row_sampler: RowSampler, temperature: float, of: str) -> None:
    """Chi-square: of 40,000 draws from 300 tokens, which vary by a factor of a million."""
    draws, vocabulary = 40_000, 300
    scores = torch.randn(vocabulary, generator=torch.Generator().manual_seed(6)) * 2.5
    if temperature < 0.01:
        scores /= 100
    numbers = range(draws)
    params = [
        {"do_sample": True, "temperature": temperature, "seed": 9 if of == "one sequence" else n, "logprobs": False}
        for n in numbers
    ]
    positions = list(numbers) if of == "one sequence" else [7] * draws
    chosen = choose(row_sampler, scores.expand(draws, -1).contiguous(), params, positions=positions).token_ids
    expected = (scores / temperature).double().softmax(0) * draws
    counts = torch.bincount(torch.tensor(chosen), minlength=vocabulary).double()
    often = expected >= 5
    rest = counts[~often].sum() - expected[~often].sum()
    square = ((counts - expected)[often].square() / expected[often]).sum()
    degrees = int(often.sum()) - 1
    assert degrees > 10
    assert float(square) < degrees + 5 * (2 * degrees) ** 0.5
    assert abs(float(rest)) < 5 * max(1.0, float(expected[~often].sum())) ** 0.5


def test_draws_do_not_know_of_one_another(row_sampler: RowSampler) -> None:
    """Of 40,000 draws of a sequence, each pair of tokens follows one another as often as each of them is likely."""
    draws, vocabulary = 40_000, 8
    scores = torch.linspace(-0.5, 0.5, vocabulary)
    params = [{"do_sample": True, "seed": 3, "logprobs": False}] * draws
    rows = scores.expand(draws, -1).contiguous()
    chosen = torch.tensor(choose(row_sampler, rows, params, positions=list(range(draws))).token_ids)
    likely = scores.double().softmax(0)
    expected = likely[:, None] * likely * (draws - 1)
    counts = torch.bincount(chosen[:-1] * vocabulary + chosen[1:], minlength=vocabulary**2).view_as(expected)
    assert float(((counts - expected).square() / expected).sum()) < 64 + 5 * 128**0.5


def test_from_a_mixture_each_row_gets_what_it_asks_for(row_sampler: RowSampler) -> None:
    """Rows with scores of their own among others, drawn in every way or the best; again, rounding decides a few."""
    rng, generator = random.Random(4), torch.Generator().manual_seed(4)
    params: list[dict[str, Any]] = [{"do_sample": rng.random() < 0.8, **rng.choice(NOISY)} for _ in range(400)]
    for seed, each in enumerate(params):
        each.update(seed=seed, top_logprobs=seed % 3, bad_words_ids=((1,),) if rng.random() < 0.5 else ())
    logits, changed = (
        torch.randn(rows, 1500, generator=generator) * 2
        for rows in (400, sum(bool(each["bad_words_ids"]) for each in params))
    )
    sampled = choose(row_sampler, logits, params, changed.clone())
    own = iter(changed)
    alike = []
    for row, (each, token) in enumerate(zip(params, sampled.token_ids, strict=True)):
        scores = next(own) if each["bad_words_ids"] else logits[row]
        sampling = SamplingParams(max_new_tokens=1, **each)
        alike.append(token == (drawn(scores, sampling, 7) if each["do_sample"] else int(scores.argmax())))
    assert sum(alike) >= 398
    likely = logits.log_softmax(-1)
    assert sampled.logprobs == pytest.approx([float(likely[i, t]) for i, t in enumerate(sampled.token_ids)], abs=1e-4)
    best = [
        logits[row].argsort(descending=True, stable=True)[: each["top_logprobs"]] for row, each in enumerate(params)
    ]
    assert [[i for i, _ in top] for top in sampled.tops] == [ids.tolist() for ids in best]


def test_scores_that_are_no_numbers_name_no_token(row_sampler: RowSampler) -> None:
    logits = torch.randn(8, 1000)
    logits[:7] = float("nan")
    draws: list[dict[str, Any]] = [{}, {"top_k": 5}, {"top_p": 0.5}, {"typical_p": 0.9}, {"repetition_penalty": 1.5}]
    sampled = [{"do_sample": True, **draw} for draw in draws]
    chosen = choose(row_sampler, logits, [{}, {"top_logprobs": 3}, *sampled, {}])
    assert chosen.token_ids == [*[NO_TOKEN] * 7, int(logits[7].argmax())]
    assert all(0 <= token < 1000 for token, _ in chosen.tops[1])


@pytest.mark.parametrize("params", NOISY, ids=str)
@pytest.mark.parametrize("known", [False, True])
def test_a_score_that_is_no_number_is_not_chosen(native_pool: ThreadPool, params: dict[str, Any], known: bool) -> None:
    """Nor is it waited for where it hides the greatest: what is compared with it is neither greater nor less."""
    logits = torch.randn(64, 2048, generator=torch.Generator().manual_seed(8)) * 2
    logits[:, 640:704] += 10
    maxima = logits.view(64, -1, 64).amax(2)
    maxima[:, 10] = float("nan")
    for row in range(64):
        logits[row, 640 + row] = float("nan")
    row_sampler = NativeRowSampler(native_pool, (lambda _: maxima.data_ptr()) if known else lambda _: None)
    sampled = choose(row_sampler, logits, [{"do_sample": True, **params, "seed": row} for row in range(64)])
    row_sampler.close()
    assert all(token == NO_TOKEN or not logits[row, token].isnan() for row, token in enumerate(sampled.token_ids))


@pytest.mark.parametrize(
    ("params", "waits"),
    [
        *(({}, 0), ({"do_sample": True}, 0), ({"do_sample": True, "top_logprobs": 3}, 0)),
        *(({"do_sample": True, "top_p": 0.5}, 1), ({"do_sample": True, "top_k": 5}, 0)),
        *(({"do_sample": True, "typical_p": 0.9}, 1), ({"do_sample": True, "top_k": 5, "typical_p": 0.9}, 0)),
        ({"do_sample": True, "repetition_penalty": 1.5}, 0),
    ],
)
def test_a_gpu_is_waited_for_once_in_each_attempt_of_those_who_may_need_another(
    params: dict[str, Any], waits: int
) -> None:
    """Here one token has nearly all the probability, so that everybody's first attempt is their last."""
    logits = torch.zeros(4, 1500)
    logits[:, 9] = 50.0
    row_sampler = TorchRowSampler()
    plan = SamplingPlan(list(range(4)), [SamplingParams(max_new_tokens=1, **params)] * 4, torch.device("cpu"))
    occurred = [Occurrences(Sequence(row, [3, 7, 8, 7], 2, plan.params[row])) for row in plan.penalized]
    row_sampler.choose(logits, None, SamplingRequest(plan, [7] * 4, occurred))
    with Operations() as operations:
        assert row_sampler.choose(logits, None, SamplingRequest(plan, [8] * 4, occurred)).token_ids == [9] * 4
    assert operations.waits == waits
