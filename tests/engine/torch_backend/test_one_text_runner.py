"""A model whose layers keep the text that they read last, as DeepSpeed's kernels do: here with transformers' cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache

from djl_python.core.types import SamplingParams
from djl_python.engine.batch.chunk import SequenceChunk
from djl_python.engine.batch.sequence import Sequence
from djl_python.engine.torch_backend.one_text_runner import OneTextRunner
from tests.checkpoints import CACHE, build_checkpoint


class KeepsOneText(nn.Module):
    """Several tokens begin a text; one token goes on with the last one, whosever that is."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.cache = DynamicCache()
        self.read: list[int] = []

    def forward(self, input_ids: Tensor, position_ids: Tensor, use_cache: bool) -> Any:
        assert not use_cache
        if input_ids.shape[1] > 1:
            self.cache = DynamicCache()
        self.read.append(input_ids.shape[1])
        return self.model(input_ids=input_ids, position_ids=position_ids, use_cache=True, **{CACHE: self.cache})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = build_checkpoint(tmp_path_factory.mktemp("llama"), "llama")
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def sequence(number: int, tokens: list[int], *, every_row: bool = False) -> Sequence:
    sampling = SamplingParams(max_new_tokens=9, prompt_logprobs=0 if every_row else None)
    return Sequence(number, list(tokens), len(tokens), sampling)


def step(runner: OneTextRunner, one: Sequence, length: int) -> Tensor:
    logits = runner.run([SequenceChunk(one, length)])
    one.computed += length
    return logits


@torch.inference_mode()
def logits_of(model: Any, tokens: list[int]) -> Tensor:
    logits: Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


def test_a_text_goes_on_by_one_token_at_a_time(model: Any) -> None:
    keeps = KeepsOneText(model)
    runner, one = OneTextRunner(keeps, torch.device("cpu")), sequence(1, [5, 6, 7, 8, 9])
    torch.testing.assert_close(step(runner, one, 5), logits_of(model, one.tokens)[-1:])
    for token in (3, 4):
        one.tokens.append(token)
        torch.testing.assert_close(step(runner, one, 1), logits_of(model, one.tokens)[-1:])
    assert keeps.read == [5, 1, 1]


def test_another_text_is_read_from_its_beginning(model: Any) -> None:
    keeps = KeepsOneText(model)
    runner = OneTextRunner(keeps, torch.device("cpu"))
    one, other = sequence(1, [5, 6, 7]), sequence(2, [9, 8, 7, 6])
    step(runner, one, 3), step(runner, other, 4)
    one.tokens.append(4)
    torch.testing.assert_close(step(runner, one, 1), logits_of(model, one.tokens)[-1:])
    runner.forget(one)
    one.tokens.append(4)
    torch.testing.assert_close(step(runner, one, 1), logits_of(model, one.tokens)[-1:])
    assert keeps.read == [3, 4, 4, 5]


def test_a_single_token_begins_a_text(model: Any) -> None:
    runner = OneTextRunner(KeepsOneText(model), torch.device("cpu"))
    step(runner, sequence(1, [5, 6, 7]), 3)
    one = sequence(2, [9])
    torch.testing.assert_close(step(runner, one, 1), logits_of(model, [9])[-1:])
    one.tokens.append(4)
    torch.testing.assert_close(step(runner, one, 1), logits_of(model, [9, 4])[-1:])


def test_all_rows_of_a_piece_where_they_are_wanted(model: Any) -> None:
    runner, one = OneTextRunner(KeepsOneText(model), torch.device("cpu")), sequence(1, [5, 6, 7, 8], every_row=True)
    step(runner, one, 2)
    torch.testing.assert_close(step(runner, one, 2), logits_of(model, one.tokens)[-2:])
