"""Positions whose meaning depends on how long a text is, and how long one may be."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    Ministral3Config,
    Phi3Config,
    PretrainedConfig,
)

from djl_python.core.errors import ModelLoadError
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams
from djl_python.engine.native.library import library
from djl_python.engine.reading.inference.decoder import read_recipe
from djl_python.engine.reading.recipe.primitives import NotUnderstoodError
from tests.checkpoints import VOCABULARY, since
from tests.engines import generate, open_batch, run_to_end
from tests.kernels import kernels_or_skip

ORIGINAL, CONTEXT = 64, 256
_SHAPE: dict[str, Any] = {
    **{"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT},
    **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "initializer_range": 0.2},
}


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, "rope_type": kind, **more}}


def longrope() -> PretrainedConfig:
    factors = {"short_factor": [1 + 0.1 * i for i in range(8)], "long_factor": [1 + 0.9 * i for i in range(8)]}
    original = {"original_max_position_embeddings": ORIGINAL}
    return Phi3Config(**_SHAPE, **original, **rope("longrope", **factors, **original))


def save(path: Path, config: PretrainedConfig) -> Path:
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config).float()
    model.generation_config.eos_token_id = None
    model.save_pretrained(path)
    return path


def prompt(tokens: int) -> list[int]:
    rng = random.Random(tokens)
    return [rng.randrange(2, VOCABULARY) for _ in range(tokens)]


# Within the first length, across it at once, from its end, beyond it; and what begins like another, which is longer.
LONG = prompt(150)
ASKED = [
    (prompt(20), 30),
    (prompt(60), 40),
    (prompt(ORIGINAL), 20),
    (prompt(ORIGINAL + 1), 20),
    (LONG, 30),
    (LONG[:50], 12),
]


@since("5.22")  # older releases generate something else from where a text comes to the longer factors
@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_no_text_depends_on_how_long_others_are(kernels: str, tmp_path: Path) -> None:
    """All in one batch, in small pieces, twice, so that the second time prefixes are found."""
    if kernels == "native":
        kernels_or_skip(library)
    path = save(tmp_path, longrope())
    batch = open_batch(path, kernels=kernels)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    if kernels == "torch":  # which has one kind of rotation, that of the context
        model.model.rotary_emb(torch.zeros(1), torch.tensor([[CONTEXT - 1]]))
        model.model.rotary_emb.rope_type = "none"
    expected = [generate(model, ids, count) for ids, count in ASKED]
    for _ in range(2):
        for number, (ids, count) in enumerate(ASKED):
            batch.add(SequenceRequest(ids, SamplingParams(max_new_tokens=count, ignore_eos=True), id=number))
        events = run_to_end(batch)
        assert [[event.token_id for event in events[number]] for number in range(len(ASKED))] == expected


def test_a_context_within_the_original_length_has_short_rows_only(tmp_path: Path) -> None:
    path = save(tmp_path, longrope())
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    batch = open_batch(path, max_model_len=ORIGINAL)
    batch.add(SequenceRequest(prompt(30), SamplingParams(max_new_tokens=30, ignore_eos=True), id=0))
    assert [event.token_id for event in run_to_end(batch)[0]] == generate(model, prompt(30), 30)


def test_dynamic_frequencies_are_those_of_the_context(tmp_path: Path) -> None:
    original = {"original_max_position_embeddings": ORIGINAL}
    path = save(tmp_path, LlamaConfig(**_SHAPE, **rope("dynamic", factor=2.0, **original)))
    runs = []
    for together in (False, True):
        batch = open_batch(path)
        batch.add(SequenceRequest(prompt(20), SamplingParams(max_new_tokens=20, ignore_eos=True), id=0))
        if together:
            batch.add(SequenceRequest(LONG, SamplingParams(max_new_tokens=20, ignore_eos=True), id=1))
        runs.append([event.token_id for event in run_to_end(batch)[0]])
    assert runs[0] == runs[1]


def test_queries_that_grow_with_the_position_are_no_rotations(tmp_path: Path) -> None:
    more = {"original_max_position_embeddings": ORIGINAL, "llama_4_scaling_beta": 0.1, "factor": 4.0}
    more |= {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    path = save(tmp_path, Ministral3Config(**_SHAPE, head_dim=16, **rope("yarn", **more)))
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with pytest.raises(NotUnderstoodError, match="grow with the position"):
        read_recipe(model, CONTEXT)
    batch = open_batch(path)
    batch.add(SequenceRequest(LONG, SamplingParams(max_new_tokens=20, ignore_eos=True), id=0))
    assert [event.token_id for event in run_to_end(batch)[0]] == generate(model, LONG, 20)


def test_a_linear_factor_extends_the_context_if_asked_for(tmp_path: Path) -> None:
    path = save(tmp_path, LlamaConfig(**_SHAPE, **rope("linear", factor=4.0)))
    assert open_batch(path).max_model_len == CONTEXT
    batch = open_batch(path, max_model_len=3 * CONTEXT)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    batch.add(SequenceRequest(prompt(2 * CONTEXT), SamplingParams(max_new_tokens=9, ignore_eos=True), id=0))
    assert [event.token_id for event in run_to_end(batch)[0]] == generate(model, prompt(2 * CONTEXT), 9)
    with pytest.raises(ModelLoadError, match=f"more than the checkpoint's context of {4 * CONTEXT}"):
        open_batch(path, max_model_len=5 * CONTEXT)
