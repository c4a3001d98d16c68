"""Models that get less memory than they need: parts of them in other memory and on disk, by accelerate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from djl_python.config import ModelConfig, Options
from djl_python.core.errors import ModelLoadError
from djl_python.core.types import SamplingParams
from djl_python.engine.builtin.opening import open_batch
from djl_python.engine.builtin.options import BuiltInOptions
from djl_python.engine.builtin.row import ENGINE
from djl_python.engine.interface import RollingBatch
from djl_python.engine.settings import BuiltInSettings
from tests.checkpoints import build_checkpoint
from tests.engines import greedy, random_requests, run_to_end

#: Less than the weights of any of these, and more than those of their largest module.
LITTLE = json.dumps({"cpu": "100KB"})


def opened(path: Path, **settings: Any) -> RollingBatch:
    defaults = {"max_batch_size": 4, "max_model_len": 128, "threads": 1, "kv_cache_memory_mb": 16}
    made = BuiltInSettings(model_path=str(path), **{**defaults, **settings})
    return open_batch(made, lambda *report: None)


@pytest.mark.parametrize(
    ("architecture", "layout"),
    [
        ("llama", {"device_map": "auto", "max_memory": LITTLE}),
        ("llama", {"device_map": "sequential", "max_memory": LITTLE}),
        ("llama", {"device_map": "balanced_low_0", "max_memory": LITTLE}),
        ("llama", {"device_map": json.dumps({"": "disk"})}),
        ("llama", {"device_map": json.dumps({"model": "disk", "lm_head": "cpu"})}),
        ("bloom", {"device_map": "auto", "max_memory": LITTLE}),  # on transformers' own cache
        ("qwen3_5", {"device_map": "auto", "max_memory": LITTLE}),  # with states
        ("qwen2_moe", {"device_map": "auto", "max_memory": LITTLE}),
    ],
)
def test_greedy_ids_are_those_of_generate(architecture: str, layout: dict[str, str], tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path / "model", architecture)
    batch = opened(path, **layout, offload_folder=str(tmp_path / "offloaded"))
    assert " MiB on disk, of " in batch.info.offloaded
    assert batch.info.warnings == (batch.info.offloaded,)
    requests = random_requests(6, seed=3)
    for number, (prompt, new_tokens) in enumerate(requests):
        batch.add(number, prompt, SamplingParams(max_new_tokens=new_tokens))
    got = {number: [event.token_id for event in events] for number, events in run_to_end(batch).items()}
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    assert got == {i: greedy(model, prompt, got[i], new_tokens) for i, (prompt, new_tokens) in enumerate(requests)}
    batch.close()


def test_a_model_that_fits_is_on_its_device(tmp_path: Path) -> None:
    batch = opened(build_checkpoint(tmp_path / "model", "llama"), device_map="auto")
    assert batch.info.offloaded == ""
    assert opened(tmp_path / "model").info == batch.info


def test_a_model_larger_than_what_is_free_is_laid_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build_checkpoint(tmp_path / "model", "llama")
    monkeypatch.setattr("djl_python.engine.devices.offloading.available_bytes", lambda: 1000)
    assert opened(path, device_map="auto").info.runner == "torch-paged"  # accelerate finds room all the same


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_memory": '{"cpu": "5MB"}'}, "option.device_map lays out, which is unset"),
        ({"device_map": "auto", "max_memory": "5MB"}, "option.max_memory: not valid JSON"),
        ({"device_map": "auto", "max_memory": "[1]"}, "option.max_memory: expected a JSON object"),
        (
            {"device_map": "auto", "max_memory": '{"gpu": "5MB"}'},
            "option.max_memory: gpu: '5MB': expected sizes by device",
        ),
        ({"device_map": "auto", "max_memory": '{"cpu": "much"}'}, "option.max_memory: cpu: 'much': expected sizes"),
        ({"device_map": "{model}"}, "option.device_map: not valid JSON"),
        ({"device_map": "{}", "quantize": "int8"}, "option.quantize=int8: a model that is laid out keeps its weights"),
        ({"device_map": "{}", "kernels": "native"}, "option.kernels=native: a model that is laid out runs on torch"),
    ],
)
def test_what_can_not_be_laid_out_is_refused_before_it_is_loaded(options: dict[str, str], reason: str) -> None:
    config = ModelConfig(name="m", option=Options(), engine_options=options)
    with pytest.raises(ModelLoadError) as caught:
        ENGINE.check_model(config)
    assert reason in caught.value.message
    assert ENGINE.options_of(config) == BuiltInOptions(**options)  # type: ignore[arg-type]
