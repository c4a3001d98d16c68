"""The Triton kernels of single tokens' attention. Without a GPU, Triton's interpreter runs them, where it is installed:

TRITON_INTERPRET=1 python -m pytest tests/engine/torch_backend/test_token_attention.py
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
import torch

from djl_python.engine.attention.dense import attention
from djl_python.engine.attention.parameters import AttentionParams

pytest.importorskip("triton", reason="triton is not installed")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
BLOCK, BLOCKS, USED = 16, 40, 12

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="there is no GPU"),
]


@pytest.mark.parametrize("dtype", [torch.float32, *([] if INTERPRETED else [torch.bfloat16, torch.float16])])
@pytest.mark.parametrize(
    "heads, kv_heads, key_dim, value_dim, window, softcap, sinks, tokens",
    [
        (4, 2, 16, 16, 0, 0.0, False, 3),
        (4, 2, 24, 16, 7, 0.0, False, 5),  # latent attention has other values than keys
        (6, 1, 32, 32, 0, 5.0, True, 4),
        (4, 4, 80, 80, 50, 0.0, True, 2),
        (2, 1, 8, 8, 0, 0.0, False, 1),
        (8, 2, 256, 256, 0, 0.0, False, 3),
        (9, 3, 64, 64, 0, 0.0, False, 70),
        (32, 2, 128, 128, 0, 0.0, False, 300),
    ],
)
def test_attention_is_that_of_dense_keys_and_values(
    heads: int, kv_heads: int, key_dim: int, value_dim: int, window: int, softcap: float, sinks: bool, tokens: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    from djl_python.engine.torch_backend.token_attention import attend_by_token

    if INTERPRETED and tokens > 100:
        pytest.skip("it takes the interpreter a minute")
    rng = random.Random(tokens)
    generator = torch.Generator().manual_seed(tokens)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE, dtype)

    keys, values = drawn(BLOCKS, BLOCK, kv_heads, key_dim), drawn(BLOCKS, BLOCK, kv_heads, value_dim)
    order = rng.sample(range(BLOCKS), BLOCKS)
    tables = [order[USED * number : USED * (number + 1)] for number in range(3)]
    for cache in (keys, values):  # what no query looks at was never written
        cache[order[3 * USED :]] = torch.nan
        for table in tables:
            cache[table[-1], BLOCK - 1] = torch.nan
    numbers = [rng.randrange(3) for _ in range(tokens)]
    positions = [rng.randrange(USED * BLOCK - 1) for _ in range(tokens)]
    query = drawn(tokens, heads, key_dim).transpose(0, 1)
    how = AttentionParams(key_dim**-0.5, window, softcap, drawn(heads) if sinks else None)
    starts = [USED * number for number in numbers]
    places, begins, blocks = (torch.tensor(each, device=DEVICE) for each in (positions, starts, order))
    attended = attend_by_token(query, keys, values, places, begins, blocks, how)
    exact = replace(how, sinks=None if how.sinks is None else how.sinks.float())
    expected = []
    for token, (number, position) in enumerate(zip(numbers, positions, strict=True)):
        own = [
            cache[tables[number]].flatten(0, 1)[None, : position + 1].float().transpose(1, 2)
            for cache in (keys, values)
        ]
        seen = position - torch.arange(position + 1, device=DEVICE) < (window or position + 1)
        expected.append(
            attention(query[None, :, token, None].float(), own[0], own[1], seen[None, None, None], exact)[0, :, 0]
        )
    torch.testing.assert_close(
        attended.float(), torch.stack(expected), atol=1e-5 if dtype == torch.float32 else 2e-2, rtol=0
    )
