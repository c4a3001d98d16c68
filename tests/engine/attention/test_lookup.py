"""A model finds our attention by its name, and whichever function answers at the time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig

from djl_python.engine.attention.lookup import PAGED, answering, register, set_attention
from djl_python.engine.attention.parameters import AttentionParams

CONFIG = LlamaConfig(
    vocab_size=8, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, intermediate_size=8
)


class Zeros:
    """An attention whose result is nothing; records the layers that called it."""

    def __init__(self) -> None:
        self.calls: list[tuple[nn.Module, AttentionParams, Tensor | None]] = []

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        how: AttentionParams,
        mask: Tensor | None,
        others: Mapping[str, Any],
    ) -> Tensor:
        self.calls.append((module, how, mask))
        return torch.zeros(1, query.shape[2], query.shape[1], value.shape[3])


@pytest.fixture
def model() -> Any:
    register()
    made = AutoModelForCausalLM.from_config(CONFIG).eval()
    set_attention(made, PAGED)
    return made


def test_every_layers_call_is_answered_and_no_mask_is_made(model: Any) -> None:
    zeros = Zeros()
    with answering(zeros), torch.inference_mode():
        model(input_ids=torch.tensor([[1, 2, 3]]))
    assert [module for module, *_ in zeros.calls] == [layer.self_attn for layer in model.model.layers]
    assert [call[1:] for call in zeros.calls] == [(AttentionParams(0.5, 0, 0.0, None), None)] * 2


def test_the_innermost_function_answers(model: Any) -> None:
    outer, inner = Zeros(), Zeros()
    with answering(outer), torch.inference_mode():
        with answering(inner):
            model(input_ids=torch.tensor([[1]]))
        model(input_ids=torch.tensor([[1]]))
    assert (len(inner.calls), len(outer.calls)) == (2, 2)


def test_another_attention_can_be_set_again(model: Any) -> None:
    set_attention(model, "eager")
    zeros = Zeros()
    with answering(zeros), torch.inference_mode():
        model(input_ids=torch.tensor([[1]]))
    assert zeros.calls == []


def test_a_model_whose_text_configuration_is_hidden_is_refused(model: Any) -> None:
    class Hidden:
        sub_configs: tuple[str, ...] = ()

        def get_text_config(self, decoder: bool) -> LlamaConfig:
            return CONFIG

    model.config = Hidden()
    with pytest.raises(ValueError, match="keeps its language model's configuration where it is not looked for"):
        set_attention(model, "another")
