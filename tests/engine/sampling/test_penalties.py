"""Penalties against their definitions: transformers' for repetition, OpenAI's for presence and frequency."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from djl_python.core.types import SamplingParams
from djl_python.engine.batch.sequence import Sequence
from djl_python.engine.sampling.penalties import Occurrences, PenaltyTable, penalize

VOCABULARY = 200


def penalized(row: Tensor, tokens: list[int], prompt: int, penalties: tuple[float, float, float]) -> Tensor:
    repetition, presence, frequency = penalties
    scores = row.clone()
    for token in set(tokens):
        scores[token] = scores[token] / repetition if scores[token] > 0 else scores[token] * repetition
        times = tokens[prompt:].count(token)
        scores[token] -= presence * (times > 0) + frequency * times
    return scores


def test_rows_of_different_lengths_and_the_others_left_alone() -> None:
    logits = torch.randn(5, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 4
    table = PenaltyTable()
    params = SamplingParams(max_new_tokens=99)
    sequences = [Sequence(i, [5, 6, *range(6, 6 + 9 * i), 7], 2, params) for i in range(3)]
    penalties = [(1.7, 0.6, 0.3), (1.0, -0.5, 0.0), (0.8, 0.0, 2.0)]
    rows = [3, 0, 4]
    for step in range(40):
        scores = logits.clone()
        penalize(scores, rows, [table.of(each) for each in sequences], np.array(penalties, np.float32).T)
        expected = logits.clone()
        for row, sequence, mine in zip(rows, sequences, penalties, strict=True):
            expected[row] = penalized(logits[row], sequence.tokens, 2, mine)
        assert torch.allclose(scores, expected, atol=1e-5)
        for sequence in sequences:
            token = (step * 31 + sequence.id) % VOCABULARY
            sequence.tokens.append(token)


def test_penalties_keep_excluded_tokens_excluded() -> None:
    scores = torch.full((1, VOCABULARY), float("-inf"))
    sequence = Sequence(1, [4, 4, 9], 1, SamplingParams(max_new_tokens=9))
    penalize(scores, [0], [Occurrences(sequence)], np.array([[1.5], [-1.0], [-1.0]], np.float32))
    assert (scores == float("-inf")).all()


def test_an_ended_sequence_is_forgotten_and_a_recomputed_one_counted_as_it_was() -> None:
    table = PenaltyTable()
    sequence = Sequence(1, [4, 5], 1, SamplingParams(max_new_tokens=9))
    table.of(sequence)
    sequence.tokens.append(6)

    def apply() -> Tensor:
        scores = torch.ones(1, VOCABULARY)
        penalize(scores, [0], [table.of(sequence)], np.array([[2.0], [1.0], [0.5]], np.float32))
        return scores

    first = apply()
    table.drop(sequence.id)
    assert len(table) == 0
    assert torch.equal(apply(), first)
