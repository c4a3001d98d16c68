"""Which rank has which layers, and that models of all kinds compute in two stages what they compute alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen3NextConfig

from djl_python.core.errors import ModelLoadError
from djl_python.core.types import ImagePrompt, Images
from djl_python.engine.devices.pipeline_parallel import check_stages, layers_of
from djl_python.engine.settings import BuiltInSettings
from tests.engine.devices.shared_models import computed, errors, note_error, shareable


def settings(path: Path, degree: int = 2, **more: Any) -> BuiltInSettings:
    return BuiltInSettings(model_path=str(path), pipeline_parallel_degree=degree, **more)


@pytest.mark.parametrize(
    ("degree", "count", "expected"),
    [(1, 3, [range(3)]), (2, 5, [range(3), range(3, 5)]), (3, 4, [range(2), range(2, 3), range(3, 4)])],
)
def test_ranks_have_equally_many_layers_or_the_first_have_one_more(
    degree: int, count: int, expected: list[range]
) -> None:
    assert [layers_of(rank, degree, count) for rank in range(degree)] == expected


@pytest.mark.parametrize(
    ("config", "more", "what"),
    [
        (GPT2Config, {}, "a model of type gpt2 runs on one device"),
        (Qwen3NextConfig, {}, "a model with layers of type linear_attention runs on one device"),
        (LlamaConfig, {"image_example": ImagePrompt([], Images({}, (), 0))}, "a model that takes images runs on"),
        (LlamaConfig, {"quantize": "int8"}, "a model with option.quantize=int8 runs on one device"),
        (lambda: LlamaConfig(quantization_config={"quant_method": "gptq"}), {}, "a quantized checkpoint runs on one"),
        (lambda: LlamaConfig(num_hidden_layers=1), {}, "there are 1 layers; expected at most as many"),
    ],
)
def test_models_that_have_no_stages_are_refused(
    config: Callable[[], Any], more: dict[str, Any], what: str, tmp_path: Path
) -> None:
    config().save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError) as caught:
        check_stages(settings(tmp_path, device="cpu", **more))
    assert caught.value.message.startswith(f"option.pipeline_parallel_degree=2: {what}")


def compute(rank: int, folder: Path, checkpoints: list[Path]) -> None:
    """One of two processes: compare each model's logits with its own alone."""
    for path, opened, logits in computed(rank, folder, checkpoints, pipeline_parallel_degree=2):
        alone = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        weights = sum(weight.nbytes for weight in alone.parameters())
        assert opened.loaded.weight_bytes < 0.9 * weights, "a part of them"
        if rank == 0:
            note_error(folder, path, logits, alone)
        else:
            assert not logits.any(), "only the first rank has them"


@pytest.mark.slow
@pytest.mark.skipif(torch.accelerator.is_available(), reason="processors don't share a model beside GPUs")
def test_models_of_all_kinds_compute_what_they_compute_alone(tmp_path: Path) -> None:
    checkpoints = shareable(tmp_path, lambda path: check_stages(settings(path, device="cpu")))
    assert {"llama", "gemma2", "gpt_neox", "qwen3_moe", "glm4_moe", "deepseek_v3"} <= {one.name for one in checkpoints}
    off = errors(tmp_path, compute, checkpoints)
    assert {name: error for name, error in off.items() if error > 1e-5} == {}
