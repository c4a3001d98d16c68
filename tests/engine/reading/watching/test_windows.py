"""Windows of an attention of the model's own are seen where enough tokens show them, and not guessed elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GPTNeoForCausalLM

from djl_python.engine.reading.inference.decoder import read_recipe
from djl_python.engine.reading.recipe.primitives import NotUnderstoodError
from tests.checkpoints import build_checkpoint


@pytest.fixture
def model(tmp_path: Path) -> GPTNeoForCausalLM:
    """Its second layer has a window of 8."""
    return AutoModelForCausalLM.from_pretrained(build_checkpoint(tmp_path, "gpt_neo")).eval()


@pytest.mark.parametrize(("positions", "windows"), [(64, [0, 8]), (9, [0, 8]), (8, [0, 0])])
def test_a_window_is_seen_unless_it_is_longer_than_any_text(
    positions: int, windows: list[int], model: GPTNeoForCausalLM
) -> None:
    assert [each.window for each in read_recipe(model, positions).attentions] == windows


def masked(model: GPTNeoForCausalLM, change: Callable[[Tensor], object]) -> None:
    """Change what tokens of the second layer see: (heads, tokens, positions)."""
    attention = model.transformer.h[1].attn.attention
    attention.bias = attention.bias.repeat(1, 4, 1, 1)
    change(attention.bias[0])


def test_heads_with_windows_of_their_own_are_not_read(model: GPTNeoForCausalLM) -> None:
    masked(model, lambda sees: sees[3, 10:, :-250].fill_(False))
    with pytest.raises(NotUnderstoodError, match="a mask that is not of a window"):
        read_recipe(model, 64)


def test_a_window_with_a_hole_is_not_read(model: GPTNeoForCausalLM) -> None:
    def hole(sees: Tensor) -> None:
        sees &= ~torch.ones(256, 256, dtype=torch.bool).tril(-6).triu(-6)
        sees[:, :7] = torch.ones(7, 256, dtype=torch.bool).tril()

    masked(model, hole)
    with pytest.raises(NotUnderstoodError, match="a mask that is not of a window"):
        read_recipe(model, 64)


def test_a_window_of_many_tokens_is_not_looked_for(model: GPTNeoForCausalLM) -> None:
    model.config.window_size = 2048
    with pytest.raises(NotUnderstoodError, match="an attention of its own, with a window of 2048"):
        read_recipe(model, 4096)
