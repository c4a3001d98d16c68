"""A plan whose numbers lie where a recorded step reads them: what it attends to is what any other plan does."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from djl_python.core.types import SamplingParams
from djl_python.engine.attention.parameters import AttentionParams, LayerShape
from djl_python.engine.batch.chunk import SequenceChunk
from djl_python.engine.batch.sequence import Sequence
from djl_python.engine.torch_backend.token_plan import TokenPlan, numbers_for
from djl_python.engine.torch_backend.torch_cache import TorchCache
from tests.token_attention import by_token

BLOCKS, SIZE, HEADS, KV_HEADS, DIM = 40, 4, 4, 2, 16
CPU = torch.device("cpu")


def chunks_of(rng: random.Random, lengths: list[int]) -> list[SequenceChunk]:
    """A chunk of each length, at some place of a sequence with blocks of its own."""
    free = rng.sample(range(BLOCKS), BLOCKS)
    made = []
    for number, length in enumerate(lengths):
        computed = rng.randrange(20)
        blocks = [free.pop() for _ in range(-(-(computed + length) // SIZE))]
        tokens = [rng.randrange(100) for _ in range(computed + length)]
        sequence = Sequence(number, tokens, len(tokens), SamplingParams(max_new_tokens=9), blocks=blocks)
        sequence.computed = computed
        made.append(SequenceChunk(sequence, length))
    return made


def plan_of(tokens: int, rows: int, cache: TorchCache, blocks: int = 100) -> TokenPlan:
    numbers = torch.zeros(numbers_for(tokens, rows) + blocks, dtype=torch.long)
    return TokenPlan(numbers, tokens, rows, SIZE, cache.spare_block, by_token)


@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("lengths", [[1], [1, 1, 1], [7, 1, 1, 3]])
def test_attention_is_that_of_a_step_that_is_not_recorded(lengths: list[int], window: int) -> None:
    rng = random.Random(len(lengths))
    shape = LayerShape(HEADS, KV_HEADS, DIM, DIM, window)
    caches = [TorchCache([shape], BLOCKS, SIZE, torch.float32, CPU) for _ in range(2)]
    for cache in caches:
        torch.manual_seed(0)
        for each in (*cache.keys, *cache.values):
            each.normal_()
    chunks = chunks_of(rng, lengths)
    how = AttentionParams(0.3, window, 0.0, None)
    with caches[0].step(chunks) as plan:
        tokens = sum(lengths)
        query, key, value = (torch.randn(1, heads, tokens, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
        order: dict[int, list[int]] = {chunk.sequence.id: [] for chunk in chunks}
        for row, number in enumerate(chunk.sequence.id for chunk in plan.order for _ in range(chunk.length)):
            order[number].append(row)
        expected = caches[0].attend(0, plan, query, key, value, how)[0]
    rows = [row for own in order.values() for row in own]  # where the chunks' tokens are in the other plan
    recorded = plan_of(tokens + 3, 2, caches[1])
    assert recorded.fill(chunks, np.array([1]))
    assert recorded.ids.tolist() == [token for chunk in chunks for token in chunk.tokens] + 3 * [0]
    assert recorded.positions[:tokens].tolist() == [plan.positions[row] for row in rows]
    q, k, v = (
        torch.cat([x[:, :, rows], torch.full((1, x.shape[1], 3, DIM), torch.inf)], 2) for x in (query, key, value)
    )
    attended = caches[1].attend(0, recorded, q, k, v, how)[0]
    torch.testing.assert_close(attended[:tokens], expected[rows])
    for mine, other in zip((*caches[1].keys, *caches[1].values), (*caches[0].keys, *caches[0].values), strict=True):
        torch.testing.assert_close(mine[:BLOCKS], other[:BLOCKS], msg="nothing is written where a sequence might look")


def test_a_step_that_does_not_fit_changes_no_plan() -> None:
    cache = TorchCache([], BLOCKS, SIZE, torch.float32, CPU)
    rng = random.Random(3)
    plan = plan_of(4, 1, cache, blocks=8)
    assert plan.fill(few := chunks_of(rng, [2, 1]), np.array([0]))
    before = plan.ids.tolist()
    for lengths, keep in (([5], [0]), ([1, 1], [0, 1]), ([1] * 4, [0])):
        chunks = chunks_of(rng, lengths)
        for chunk in chunks:
            chunk.sequence.computed = 20 if len(lengths) == 4 else 0
            chunk.sequence.blocks[:] = range(7)
        assert not plan.fill(chunks, np.array(keep))
        assert plan.ids.tolist() == before == [*(token for chunk in few for token in chunk.tokens), 0]


def test_logits_that_are_wanted() -> None:
    cache = TorchCache([], BLOCKS, SIZE, torch.float32, CPU)
    plan = plan_of(8, 3, cache)
    assert plan.fill(chunks_of(random.Random(1), [4, 1]), np.array([3, 4]))
    assert plan.keep.tolist() == [3, 4, 0]
