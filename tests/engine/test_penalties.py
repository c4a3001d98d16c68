"""Penalties against their definitions: transformers' for repetition, OpenAI's for presence and frequency."""

from __future__ import annotations

import torch
from torch import Tensor

from djl_python.engine.penalties import PenaltyTable
from djl_python.engine.sequence import Sequence
from djl_python.types import SamplingParams

CPU = torch.device("cpu")
VOCABULARY = 200


def penalized(row: Tensor, tokens: list[int], prompt: int, penalties: tuple[float, float, float]) -> Tensor:
    repetition, presence, frequency = penalties
    scores = row.clone()
    for token in set(tokens):
        scores[token] = scores[token] / repetition if scores[token] > 0 else scores[token] * repetition
        times = tokens[prompt:].count(token)
        scores[token] -= presence * (times > 0) + frequency * times
    return scores


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers)[:, None]


def test_rows_of_different_lengths_and_the_others_left_alone() -> None:
    logits = torch.randn(5, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 4
    table = PenaltyTable(CPU)
    params = SamplingParams(max_new_tokens=99)
    sequences = [Sequence(i, [5, 6, *range(6, 6 + 9 * i), 7], 2, params) for i in range(3)]
    penalties = [(1.7, 0.6, 0.3), (1.0, -0.5, 0.0), (0.8, 0.0, 2.0)]
    rows = [3, 0, 4]
    for step in range(40):
        scores = logits.clone()
        table.apply(scores, torch.tensor(rows), sequences, *(column(*each) for each in zip(*penalties, strict=True)))
        expected = logits.clone()
        for row, sequence, mine in zip(rows, sequences, penalties, strict=True):
            expected[row] = penalized(logits[row], sequence.tokens, 2, mine)
        assert torch.allclose(scores, expected, atol=1e-5)
        for sequence in sequences:
            token = (step * 31 + sequence.id) % VOCABULARY
            table.count(sequence, token)
            sequence.tokens.append(token)


def test_what_is_ruled_out_stays_ruled_out() -> None:
    scores = torch.full((1, VOCABULARY), float("-inf"))
    sequence = Sequence(1, [4, 4, 9], 1, SamplingParams(max_new_tokens=9))
    PenaltyTable(CPU).apply(scores, torch.tensor([0]), [sequence], column(1.5), column(-1.0), column(-1.0))
    assert (scores == float("-inf")).all()


def test_an_ended_sequence_is_forgotten_and_a_recomputed_one_counted_as_it_was() -> None:
    table = PenaltyTable(CPU)
    sequence = Sequence(1, [4, 5], 1, SamplingParams(max_new_tokens=9))
    table.count(sequence, 6)
    sequence.tokens.append(6)

    def apply() -> Tensor:
        scores = torch.ones(1, VOCABULARY)
        table.apply(scores, torch.tensor([0]), [sequence], column(2.0), column(1.0), column(0.5))
        return scores

    first = apply()
    table.drop(sequence.id)
    assert len(table) == 0
    assert torch.equal(apply(), first)
