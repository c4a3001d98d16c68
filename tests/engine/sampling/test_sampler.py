"""The sampler against transformers' own processors, and its promise about seeds."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from djl_python.core.types import SamplingParams
from djl_python.engine.batch.sequence import Sequence
from djl_python.engine.sampling.row_sampler import RowSampler
from djl_python.engine.sampling.sampler import Sampler, prompt_entries, ranks_of
from djl_python.engine.sampling.torch_row_sampler import TorchRowSampler

CPU = torch.device("cpu")
VOCABULARY = 1500  # more than the sampler looks at before it sorts everything
EOS = 1


def sequence(number: int = 0, tokens: list[int] | None = None, prompt: int | None = None, **params: Any) -> Sequence:
    tokens = tokens or [5, 6, 7]
    return Sequence(
        number, tokens, len(tokens) if prompt is None else prompt, SamplingParams(max_new_tokens=99, **params)
    )


@pytest.fixture(autouse=True, params=["torch", "native"])
def row_sampler(request: pytest.FixtureRequest) -> Iterator[RowSampler]:
    """What chooses for every sampler of this module."""
    global _row_sampler
    _row_sampler = TorchRowSampler() if request.param == "torch" else request.getfixturevalue("native_row_sampler")
    yield _row_sampler


_row_sampler: RowSampler = TorchRowSampler()


def sampler() -> Sampler:
    return Sampler(VOCABULARY, frozenset({EOS}), CPU, _row_sampler)


def logits(rows: int, spread: float = 3.0, seed: int = 0) -> Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * spread


def draw_many(row: Tensor, draws: int, **params: Any) -> Tensor:
    """Token ids drawn from one row of logits with seeds 0 .. draws-1."""
    token_ids: list[int] = []
    ours = sampler()
    for start in range(0, draws, 500):
        batch = [sequence(start + i, do_sample=True, seed=start + i, **params) for i in range(500)]
        token_ids += [s.token_id for s in ours.sample(row.expand(500, -1), batch)]
    return torch.tensor(token_ids)


WARPERS: list[tuple[dict[str, Any], list[Any]]] = [
    ({"temperature": 0.7}, [TemperatureLogitsWarper(0.7)]),
    ({"top_k": 5}, [TopKLogitsWarper(5)]),
    ({"top_p": 0.6}, [TopPLogitsWarper(0.6)]),
    ({"top_k": 1200, "top_p": 0.5}, [TopKLogitsWarper(1200), TopPLogitsWarper(0.5)]),
    ({"top_k": 9, "top_p": 0.5}, [TopKLogitsWarper(9), TopPLogitsWarper(0.5)]),
    ({"min_p": 0.2}, [MinPLogitsWarper(0.2)]),
    ({"typical_p": 0.3}, [TypicalLogitsWarper(0.3)]),
    ({"typical_p": 0.98}, [TypicalLogitsWarper(0.98)]),
    ({"top_p": 0.8, "typical_p": 0.5}, [TopPLogitsWarper(0.8), TypicalLogitsWarper(0.5)]),
    ({"top_p": 0.98}, [TopPLogitsWarper(0.98)]),
    (
        {"temperature": 1.5, "top_k": 50, "top_p": 0.9, "min_p": 0.02},
        [TemperatureLogitsWarper(1.5), TopKLogitsWarper(50), TopPLogitsWarper(0.9), MinPLogitsWarper(0.02)],
    ),
]


@pytest.mark.parametrize(("params", "warpers"), WARPERS, ids=[str(p) for p, _ in WARPERS])
@pytest.mark.parametrize("spread", [3.0, 0.3], ids=["peaked", "flat"])
def test_draws_follow_the_distribution_of_transformers_warpers(
    params: dict[str, Any], warpers: list[Any], spread: float
) -> None:
    row = logits(1, spread)
    expected = LogitsProcessorList(warpers)(torch.tensor([[5, 6, 7]]), row.clone()).softmax(-1)[0]
    draws = 4000
    counts = torch.bincount(draw_many(row, draws, **params), minlength=VOCABULARY)
    assert counts[expected == 0].sum() == 0, "a token that the rule excludes"
    # A mean over the tokens that are likely enough to be counted: within 5 standard errors each.
    likely = expected * draws > 20
    error = (counts[likely] / draws - expected[likely]).abs()
    assert (error < 5 * (expected[likely] / draws).sqrt()).all()


def test_the_same_seed_draws_the_same_whatever_else_is_in_the_batch() -> None:
    mine: dict[str, Any] = {
        "do_sample": True,
        "top_p": 0.9,
        "temperature": 1.3,
        "repetition_penalty": 1.2,
        "seed": 2**64 - 1,
    }
    row = logits(1, 0.5, seed=42)
    alone = sampler().sample(row, [sequence(0, **mine)])[0]
    others = [
        sequence(1),
        sequence(2, do_sample=True, seed=3),
        sequence(3, do_sample=True, top_k=4, seed=1),
        sequence(4, do_sample=True, typical_p=0.4, presence_penalty=1.0),
    ]
    crowd = sampler().sample(
        torch.cat([logits(2, seed=1), row, logits(2, seed=2)]), [*others[:2], sequence(0, **mine), *others[2:]]
    )
    assert crowd[2] == alone


def test_draws_differ_by_seed_and_by_position() -> None:
    row = logits(1, 0.3)
    assert len(set(draw_many(row, 500).tolist())) > 300
    same_seed = [
        sampler().sample(row, [sequence(0, [5] * (3 + i), prompt=3, do_sample=True, seed=9)])[0].token_id
        for i in range(50)
    ]
    assert len(set(same_seed)) > 40


def test_temperature_zero_and_no_sampling_are_greedy() -> None:
    rows = logits(2)
    drawn = sampler().sample(rows, [sequence(0), sequence(1, do_sample=True, temperature=0.0)])
    assert [d.token_id for d in drawn] == rows.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [1e-37, 2e-37, 1e-39, 1e-45, 5e-324])
def test_almost_no_temperature_is_greedy(temperature: float) -> None:
    row = logits(1)
    drawn = sampler().sample(row, [sequence(0, do_sample=True, temperature=temperature)])
    assert drawn[0].token_id == int(row.argmax())


@pytest.mark.parametrize("penalty", [1e-45, 5e-324, 1e300])
def test_no_penalty_is_too_great_for_the_scores(penalty: float) -> None:
    row = logits(1)
    best = int(row.argmax())
    (drawn,) = sampler().sample(row.clone(), [sequence(0, [best, 3], repetition_penalty=penalty)])
    assert math.isfinite(drawn.logprob or 0)
    assert (drawn.token_id == best) == (penalty < 1)


def test_repetition_penalty_is_transformers() -> None:
    row = logits(1)
    tokens = [*row[0].topk(5).indices.tolist(), 3, 4]
    expected = RepetitionPenaltyLogitsProcessor(5.0)(torch.tensor([tokens]), row.clone()).argmax(-1)
    assert sampler().sample(row, [sequence(0, tokens, repetition_penalty=5.0)])[0].token_id == expected


def test_presence_and_frequency_penalties_count_generated_tokens_only() -> None:
    row = torch.zeros(1, VOCABULARY)
    row[0, [10, 11, 12]] = torch.tensor([3.0, 2.9, 2.0])
    ours = sampler()
    mine = sequence(0, [10, 10, 10], frequency_penalty=0.5)
    drawn = []
    for _ in range(4):
        drawn.append(ours.sample(row, [mine])[0].token_id)
        mine.tokens.append(drawn[-1])
    assert drawn == [10, 11, 10, 11], "3, then 2.5 < 2.9, then 2.5 > 2.4, then 2.0 < 2.4"
    resumed = sampler().sample(row, [sequence(1, [10, 11, 10], prompt=0, presence_penalty=1.5)])
    assert resumed[0].token_id == 12


def test_bad_words_and_minimum_length() -> None:
    row = logits(1)
    best, second, third = row[0].topk(3).indices.tolist()
    bad = NoBadWordsLogitsProcessor([[best], [7, second]], eos_token_id=[EOS])
    expected = int(bad(torch.tensor([[5, 6, 7]]), row.clone()).argmax())
    assert expected == third
    banned = sequence(0, bad_words_ids=((best,), (7, second), (9, third)))
    assert sampler().sample(row, [banned])[0].token_id == third
    row[0, [EOS, 44]] = 100.0
    early = sequence(0, min_new_tokens=1, stop_token_ids=(44,))
    assert sampler().sample(row, [early])[0].token_id == best
    late = sequence(0, [5, 6, 7, 8], prompt=3, min_new_tokens=1)
    assert sampler().sample(row, [late])[0].token_id in (EOS, 44)


def best_allowed(row: Tensor, mine: Sequence, eos_ids: set[int]) -> int:
    """The rules once more, a token at a time."""
    params, tokens, said = mine.sampling, mine.tokens, mine.tokens[mine.prompt_length :]
    scores = {}
    for token, score in enumerate(row.tolist()):
        score += params.logit_bias.get(token, 0.0)
        if len(said) < params.min_new_tokens and token in {*eos_ids, *params.stop_token_ids}:
            continue
        if any(word[-1] == token and [*tokens, token][-len(word) :] == [*word] for word in params.bad_words_ids):
            continue
        if token in tokens:
            score = score / params.repetition_penalty if score > 0 else score * params.repetition_penalty
        scores[token] = score - params.presence_penalty * (token in said) - params.frequency_penalty * said.count(token)
    return max(scores, key=scores.__getitem__)


@pytest.mark.parametrize("seed", range(5))
def test_in_a_batch_that_changes_everybodys_own_rules_apply(seed: int) -> None:
    """Small vocabularies, so that rules matter; some ids are beyond them, as a tokenizer may have more."""
    rng, vocabulary, eos_ids = random.Random(seed), 12, {1, 12, 40}
    ours = Sampler(vocabulary, frozenset(eos_ids), CPU, _row_sampler)
    batch: list[Sequence] = []
    for number in range(150):
        if len(batch) < 4 and rng.random() < 0.6:
            params: dict[str, Any] = {
                "min_new_tokens": rng.choice([0, 0, 2, 5]),
                "stop_token_ids": rng.choice([(), (2, 13), (3, 12)]),
                "ignore_eos": rng.random() < 0.5,
                "bad_words_ids": rng.choice([(), ((4,), (5, 6)), ((7, 7, 8), (9, 10), (2,))]),
                "logit_bias": rng.choice([{}, {5: 1.0, 8: -0.5}]),
                "repetition_penalty": rng.choice([1.0, 1.3]),
                "presence_penalty": rng.choice([0.0, 0.4]),
                "frequency_penalty": rng.choice([0.0, 0.3]),
            }
            prompt = [rng.randrange(vocabulary) for _ in range(rng.randrange(1, 4))]
            batch.insert(rng.randrange(len(batch) + 1), sequence(number, prompt, **params))
        rows = logits(len(batch), 1.0, number)[:, :vocabulary]
        rows[:, [1, 2, 3]] += 0.7
        for mine, row, drawn in zip(batch, rows, ours.sample(rows, batch) if batch else [], strict=True):
            assert drawn.token_id == best_allowed(row, mine, eos_ids)
            mine.tokens.append(drawn.token_id)
        for mine in list(batch):
            if rng.random() < 0.1:
                batch.remove(mine)
                ours.forget(mine)
        rng.shuffle(batch)


def test_logit_bias_is_added_before_everything_else() -> None:
    rows = torch.zeros(3, VOCABULARY)
    rows[:, 20] = 1.0
    biased: dict[str, Any] = {"logit_bias": {30: 5.0, 31: 4.0, 20: -100.0}}
    drawn = sampler().sample(
        rows,
        [
            sequence(0, **biased),
            sequence(1),
            sequence(2, tokens=[30], repetition_penalty=2.0, bad_words_ids=((31,),), top_logprobs=1, **biased),
        ],
    )
    assert [d.token_id for d in drawn] == [30, 20, 30], "5 / 2 is still the best of what is allowed"
    own = rows[0].log_softmax(-1)
    assert drawn[0].logprob == pytest.approx(float(own[30]), abs=1e-5)
    assert drawn[2].top == ((20, drawn[1].logprob),)


def test_a_bias_reaches_draws_too() -> None:
    row = logits(1)
    bias = {5: 20.0, 7: 20.0}
    expected = row[0].clone()
    expected[[5, 7]] += 20.0
    counts = torch.bincount(draw_many(row, 1000, logit_bias=bias), minlength=VOCABULARY)
    assert (counts / 1000 - expected.softmax(-1)).abs().max() < 0.08


@pytest.mark.parametrize("vocabulary", [50, 640, 1000])
def test_every_token_is_drawn_as_often_as_it_is_likely(vocabulary: int) -> None:
    """Also where blocks of tokens have no probability at all, and in the last block, which is not whole."""
    probabilities = torch.zeros(vocabulary)
    likely = torch.tensor([0, 7, vocabulary // 2, vocabulary - 2, vocabulary - 1])
    probabilities[likely] = torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25])
    counts = torch.zeros(vocabulary)
    ours = Sampler(vocabulary, frozenset(), CPU, _row_sampler)
    for start in range(0, 4000, 500):
        batch = [sequence(start + i, [1], do_sample=True, seed=start + i) for i in range(500)]
        for drawn in ours.sample(probabilities.log().expand(500, -1), batch):
            counts[drawn.token_id] += 1
    assert (counts / 4000 - probabilities).abs().max() < 0.03
    assert counts[probabilities == 0].sum() == 0


def test_logprobs_are_the_models_own_before_any_rule() -> None:
    rows = logits(3)
    own = rows.log_softmax(-1)
    params: dict[str, Any] = {"do_sample": True, "temperature": 0.2, "top_k": 2, "repetition_penalty": 3.0}
    drawn = sampler().sample(
        rows, [sequence(0, **params), sequence(1, top_logprobs=4), sequence(2, top_logprobs=1, **params)]
    )
    for row, sample in enumerate(drawn):
        assert sample.logprob == pytest.approx(float(own[row, sample.token_id]), abs=1e-5)
    assert drawn[0].top == ()
    values, ids = own[1].topk(4)
    assert [i for i, _ in drawn[1].top] == ids.tolist()
    assert [p for _, p in drawn[1].top] == pytest.approx(values.tolist(), abs=1e-5)
    assert len(drawn[2].top) == 1


def test_prompt_entries() -> None:
    rows = logits(3)
    own = rows.log_softmax(-1)
    entries = prompt_entries(_row_sampler, rows, [9, 8, 7], 2)
    assert [e[0] for e in entries] == pytest.approx([float(own[i, t]) for i, t in enumerate([9, 8, 7])], abs=1e-5)
    assert [i for i, _ in entries[1][1]] == own[1].topk(2).indices.tolist()
    assert prompt_entries(_row_sampler, rows, [9, 8, 7], 0)[0][1] == ()


def test_a_tokens_rank_is_its_place_among_the_likeliest() -> None:
    rows = logits(3)
    order = rows.argsort(-1, descending=True)
    assert ranks_of(rows, order[:, 0].tolist()) == [1, 1, 1]
    assert ranks_of(rows, [int(order[0, 4]), int(order[1, 1]), int(order[2, -1])]) == [5, 2, rows.shape[1]]
    rows[0, order[0, 1]] = rows[0, order[0, 0]]
    assert ranks_of(rows[:1], order[0, :1].tolist()) == [2]  # two are as likely


def test_an_id_can_come_again_with_other_parameters() -> None:
    row = logits(1)
    ours = sampler()
    best, second = row[0].topk(2).indices.tolist()
    assert ours.sample(row, [sequence(1)])[0].token_id == best
    ours.forget(sequence(1))
    assert ours.sample(row, [sequence(1, bad_words_ids=((best,),))])[0].token_id == second


def test_an_id_can_come_again_with_another_text() -> None:
    row = logits(1)
    ours = sampler()
    best, second = row[0].topk(2).indices.tolist()
    said = sequence(1, [5, 6, 7, best], 3, presence_penalty=100.0)
    assert ours.sample(row, [said])[0].token_id == second
    ours.forget(said)
    assert ours.sample(row, [sequence(1, [5, 6, 7, 8], 3, presence_penalty=100.0)])[0].token_id == best
