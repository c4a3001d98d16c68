"""What an observer hears of a model's attention, and which calls are refused because they say more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from djl_python.engine.attention.lookup import paged_attention
from djl_python.engine.attention.masks import UNKNOWN
from djl_python.engine.attention.observation import observed_attention
from djl_python.engine.attention.parameters import AttentionParams

TOKENS, HEADS, DIM = 3, 2, 4
QUERY, KEY, VALUE = torch.randn(3, 1, HEADS, TOKENS, DIM, generator=torch.Generator().manual_seed(0)).unbind()


def observed(mask: Tensor | None = None, key: Tensor = KEY, **call: Any) -> tuple[Tensor, AttentionParams]:
    heard: list[tuple[Tensor, AttentionParams]] = []

    def observe(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, result: Tensor, how: AttentionParams
    ) -> None:
        heard.append((result, how))

    with observed_attention(observe):
        result, weights = paged_attention(nn.Module(), QUERY, key, VALUE, mask, **call)
    assert weights is None
    assert [each[0] is result for each in heard] == [True]
    return heard[0]


def test_tokens_attend_to_themselves_and_those_before() -> None:
    result, how = observed(scaling=0.3)
    expected = nn.functional.scaled_dot_product_attention(QUERY, KEY, VALUE, is_causal=True, scale=0.3)
    torch.testing.assert_close(result, expected.transpose(1, 2))
    assert how == AttentionParams(0.3, 0, 0.0, None)


def test_a_window_of_the_call_is_heard_and_bounds_what_is_seen() -> None:
    result, how = observed(sliding_window=1)
    torch.testing.assert_close(result, VALUE.transpose(1, 2))
    assert (how.window, how.scaling) == (1, DIM**-0.5)


def test_a_mask_of_the_models_own_may_have_a_window() -> None:
    result, how = observed(torch.zeros(1, 1, TOKENS, TOKENS))
    assert how.window == UNKNOWN
    torch.testing.assert_close(result, observed()[0])


def test_a_call_that_says_which_keys_are_seen_is_refused() -> None:
    with pytest.raises(ValueError, match="also given visible"):
        observed(visible=torch.ones(TOKENS))


def test_positions_say_nothing_more() -> None:
    assert observed(position_ids=torch.arange(TOKENS))[1] == observed()[1]


def test_a_call_with_other_keys_than_its_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="has 2 keys for 3 tokens"):
        observed(key=KEY[:, :, :2])
