"""Whoever chooses a token (torch on a CPU, torch on a GPU, the native kernels), one seed gives one token."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from djl_python.core.types import SamplingParams
from djl_python.engine.batch.sequence import Sequence
from djl_python.engine.native.program.sampling import NativeRowSampler
from djl_python.engine.native.thread_pool import ThreadPool
from djl_python.engine.sampling.penalties import Occurrences
from djl_python.engine.sampling.row_sampler import RowSampler, SamplingRequest
from djl_python.engine.sampling.sampling_plan import SamplingPlan
from djl_python.engine.sampling.torch_row_sampler import TorchRowSampler
from tests.kernels import kernels_or_skip

#: By vocabulary.
ROWS = {50: 600, 3000: 300, 40_000: 80}
#: Rows in which rounding may decide between two tokens whose sums of score and noise are that close.
FEW = 2
BOUNDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"temperature": 1e-3},
    {"temperature": 2.0},
    {"top_k": 1},
    {"top_k": 40, "top_p": 0.9},
    {"top_k": 300, "min_p": 0.001},
    {"top_p": 0.2},
    {"top_p": 0.95, "min_p": 0.01},
    {"min_p": 0.1},
    {"typical_p": 0.3},
    {"typical_p": 0.95, "top_p": 0.8},
    {"typical_p": 0.5, "top_k": 30},
    {"repetition_penalty": 1.3, "presence_penalty": 0.2},
    {"frequency_penalty": 0.4, "top_p": 0.9},
]


def native() -> tuple[RowSampler, Callable[[], None]]:
    pool = kernels_or_skip(lambda: ThreadPool(2))
    row_sampler = NativeRowSampler(pool)

    def close() -> None:
        row_sampler.close()
        pool.close()

    return row_sampler, close


def mixture(rows: int, seed: int) -> list[SamplingParams]:
    rng = random.Random(seed)
    return [
        SamplingParams(
            max_new_tokens=1,
            do_sample=rng.random() < 0.9,
            seed=rng.getrandbits(64),
            top_logprobs=rng.choice([0, 0, 3]),
            bad_words_ids=rng.choice([(), ((1,),)]),
            **rng.choice(BOUNDS),
        )
        for _ in range(rows)
    ]


def tokens_of(
    row_sampler: RowSampler, device: str, params: list[SamplingParams], logits: Tensor, changed: Tensor
) -> Any:
    plan = SamplingPlan(list(range(len(params))), params, torch.device(device))
    occurred = [Occurrences(Sequence(row, [3, 7, 8, 7], 2, params[row])) for row in plan.penalized]
    asked = SamplingRequest(plan, [row % 9 for row in range(len(params))], occurred)
    sampled = row_sampler.choose(logits.to(device), changed[: len(plan.changed)].to(device, copy=True), asked)
    return sampled.token_ids, [[token for token, _ in top] for top in sampled.tops]


@pytest.mark.parametrize("of", ["fp32", "bf16"])  # in which many scores are equal
@pytest.mark.parametrize(("vocabulary", "spread"), [(50, 1.0), (3000, 0.1), (3000, 4.0), (40_000, 2.5)])
@pytest.mark.parametrize(
    "other",
    [
        "native",
        pytest.param(
            "cuda",
            marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")],
        ),
    ],
)
def test_a_seed_gives_the_same_token_in_every_sampler(other: str, vocabulary: int, spread: float, of: str) -> None:
    rows, random_ = ROWS[vocabulary], torch.Generator().manual_seed(vocabulary)
    logits, changed = (torch.randn(rows, vocabulary, generator=random_) * spread for _ in range(2))
    if of == "bf16":
        logits, changed = logits.bfloat16().float(), changed.bfloat16().float()
    params = mixture(rows, vocabulary)
    expected, best = tokens_of(TorchRowSampler(), "cpu", params, logits, changed)
    row_sampler, close = native() if other == "native" else (TorchRowSampler(), lambda: None)
    ours, theirs = tokens_of(row_sampler, "cpu" if other == "native" else other, params, logits, changed)
    close()
    assert sum(a != b for a, b in zip(ours, expected, strict=True)) <= FEW
    assert theirs == best
    assert len(set(ours)) > min(vocabulary, rows) / 10
