"""Attention on torch: what it computes, and that it copies no keys for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from djl_python.engine.attention.dense import attention
from djl_python.engine.attention.parameters import AttentionParams
from tests.operations import Operations

PLAIN = AttentionParams(0.2, 0, 0.0, None)
HEADS, SIZE, KEYS = 8, 32, 64
SINKS = torch.linspace(-1, 2, HEADS)
HOWS = [PLAIN, replace(PLAIN, softcap=2.0), replace(PLAIN, sinks=SINKS), replace(PLAIN, softcap=3.0, sinks=SINKS)]
Given = tuple[Tensor, Tensor, Tensor, Tensor]
each_how = pytest.mark.parametrize("how", HOWS, ids=["plain", "softcap", "sinks", "both"])


def given(sequences: int, queries: int, kv_heads: int, dtype: torch.dtype = torch.float32) -> Given:
    """Query, key, value and mask, as a paged cache gives them."""
    torch.manual_seed(sequences * queries)
    query = torch.randn(sequences, HEADS, queries, SIZE, dtype=dtype)
    key, value = (torch.randn(sequences, KEYS, kv_heads, SIZE, dtype=dtype).transpose(1, 2) for _ in range(2))
    mask = torch.rand(sequences, 1, queries, KEYS) > 0.3
    mask[..., 0] = True
    return query, key, value, mask


def one_by_one(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, how: AttentionParams) -> Tensor:
    """The same, a query at a time."""
    made = torch.empty_like(query)
    for sequence, head, place in torch.cartesian_prod(*map(torch.arange, query.shape[:3])).tolist():
        seen = mask[sequence, 0, place]
        group = head // (query.shape[1] // key.shape[1])
        scores = key[sequence, group, seen] @ query[sequence, head, place] * how.scaling
        if how.softcap:
            scores = (scores / how.softcap).tanh() * how.softcap
        if how.sinks is not None:
            scores = torch.cat([scores, how.sinks[head : head + 1]])
        weights = scores.softmax(0)[: int(seen.sum())]
        made[sequence, head, place] = weights @ value[sequence, group, seen]
    return made


@each_how
@pytest.mark.parametrize("kv_heads", [1, 2, HEADS])
@pytest.mark.parametrize(("sequences", "queries"), [(1, 1), (3, 1), (1, 5), (2, 3)])
def test_every_head_attends_to_its_groups_keys(
    sequences: int, queries: int, kv_heads: int, how: AttentionParams
) -> None:
    arguments = given(sequences, queries, kv_heads)
    torch.testing.assert_close(attention(*arguments, how), one_by_one(*arguments, how))


@each_how
@pytest.mark.parametrize("sequences", [1, 4])
def test_keys_are_not_copied_for_every_head_of_their_group(sequences: int, how: AttentionParams) -> None:
    query, key, value, mask = given(sequences, 1, 1, torch.bfloat16)
    with torch.no_grad(), Operations() as operations:
        attention(query, key, value, mask, how)
    scores = 4 * sequences * HEADS * KEYS  # in fp32, of which softcap and sinks make a few
    assert operations.made_bytes < (key.nbytes + value.nbytes) // 2 + 10 * scores


class _Calls(TorchFunctionMode):
    """Keeps the shapes of queries and keys that torch's attention is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[torch.Size, torch.Size]] = []

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.scaled_dot_product_attention:
            self.shapes.append((args[0].shape, args[1].shape))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("queries", [1, 5])
def test_torch_is_not_asked_for_groups_which_its_kernels_with_masks_lack_on_gpus(queries: int) -> None:
    with _Calls() as calls:
        attention(*given(1, queries, 2), PLAIN)
    [(query, key)] = calls.shapes
    assert query[:2] == key[:2]


def test_a_prompts_mask_is_not_copied_for_every_head() -> None:
    query, key, value, mask = given(1, KEYS, 2)
    with torch.no_grad(), Operations() as operations:
        attention(query, key, value, mask, PLAIN)
    assert operations.made_bytes < 2 * query.nbytes + 5 * mask.nbytes
