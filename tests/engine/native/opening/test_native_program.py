"""How a native program is sized, and what it keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from djl_python.core.errors import ModelLoadError
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams
from djl_python.engine.checkpoints.expert_stacks import ExpertStack
from djl_python.engine.checkpoints.linears import Linear
from djl_python.engine.native.library import library
from djl_python.engine.native.opening import native_program
from djl_python.engine.reading.inference.decoder import read_recipe
from djl_python.engine.reading.recipe.decoder import Experts, Recipe
from tests.checkpoints import VOCABULARY, build_checkpoint
from tests.engines import generate, open_batch, run_to_end
from tests.kernels import kernels_or_skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.mark.parametrize(("bound", "lengths"), [(64, [64, 256]), (256, [256]), (300, [256])])
def test_a_long_context_is_read_as_far_as_the_cache_goes(
    path: Path, bound: int, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rotations have a row for each position: those beyond the cache would be made for nothing."""
    kernels_or_skip(library)
    asked: list[int] = []

    def recorded(model: Any, max_positions: int) -> Any:
        asked.append(max_positions)
        return read_recipe(model, max_positions)

    monkeypatch.setattr(native_program, "read_recipe", recorded)
    monkeypatch.setattr(native_program, "READ_POSITIONS", bound)
    batch = open_batch(path, dtype="fp32", kernels="native")
    prompt = [i * 7 % VOCABULARY for i in range(200)]
    batch.add(SequenceRequest(prompt, SamplingParams(max_new_tokens=6, ignore_eos=True), id=0))
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    assert [event.token_id for event in run_to_end(batch)[0]] == generate(model, prompt, 6)
    assert asked == lengths


def test_the_program_outlives_the_models_parameters(tmp_path: Path) -> None:
    """Sinks in fp32 are used as they are; the model lets go of its parameters once the program has passed its trial."""
    kernels_or_skip(library)
    path = build_checkpoint(tmp_path, "gpt_oss", torch.bfloat16)
    batch = open_batch(path, dtype="fp32", kernels="native")
    prompt = list(range(2, 30))
    batch.add(SequenceRequest(prompt, SamplingParams(max_new_tokens=6, ignore_eos=True), id=0))
    events = run_to_end(batch)[0]
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([prompt + [event.token_id for event in events]])).logits[0, len(prompt) - 1 : -1]
    expected = [float(row[event.token_id]) for row, event in zip(logits.log_softmax(-1), events, strict=True)]
    assert [event.logprob for event in events] == pytest.approx(expected, abs=1e-3)


def test_a_cache_that_the_system_has_no_memory_for(path: Path) -> None:
    kernels_or_skip(library)
    with pytest.raises(
        ModelLoadError, match=r"no memory for the weights and what is reserved: context 256, KV cache \d+ blocks"
    ):
        open_batch(path, dtype="fp32", kernels="native", kv_blocks=1 << 40)


@pytest.mark.parametrize(
    ("architecture", "quantize", "seed"),
    [("gpt_oss", "none", 20), ("gpt_oss", "int8", 20), ("gpt_oss", "int8", 46), ("qwen3_next", "int8", 46)],
)
def test_experts_that_rounding_chooses_do_not_keep_a_model_from_the_kernels(
    architecture: str, quantize: str, seed: int, tmp_path: Path
) -> None:
    """With AVX-512, some token of these goes to another expert than in transformers, and its logits are others."""
    kernels_or_skip(library)
    path = build_checkpoint(tmp_path, architecture, torch.bfloat16, seed)
    batch = open_batch(path, kernels="native", quantize=quantize)
    assert "native kernels" in batch.description
    batch.close()


def another_router(experts: Experts) -> None:
    scores = experts.router.scores
    experts.router.scores = Linear(scores.numbers.roll(1, 0), None)


def other_weights(experts: Experts) -> None:
    experts.router.scale *= 3


def another_order(experts: Experts) -> None:
    down = experts.down
    assert isinstance(down.weight, ExpertStack)
    experts.down = replace(down, weight=replace(down.weight, experts=down.weight.experts[::-1]))


def nothing_shared(experts: Experts) -> None:
    experts.shared = experts.shared_gate = None


@pytest.mark.parametrize("quantize", ["none", "int8"])
@pytest.mark.parametrize("wrong", [another_router, other_weights, another_order, nothing_shared])
def test_experts_that_are_read_wrongly_are_refused(
    wrong: Any, quantize: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one layer."""
    kernels_or_skip(library)

    def read(model: Any, max_positions: int) -> Recipe:
        recipe = read_recipe(model, max_positions)
        mlp = recipe.layers[1].mlp
        assert mlp is not None and isinstance(mlp.body, Experts)
        wrong(mlp.body)
        return recipe

    monkeypatch.setattr(native_program, "read_recipe", read)
    path = build_checkpoint(tmp_path, "qwen2_moe", torch.bfloat16)
    with pytest.raises(ModelLoadError, match="its logits in fp32 are not the model's own"):
        open_batch(path, kernels="native", quantize=quantize)
