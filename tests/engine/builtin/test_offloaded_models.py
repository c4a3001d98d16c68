"""Models that get less memory than they need: parts of them in other memory and on disk, by accelerate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from transformers import AutoModelForCausalLM

from djl_python.config import ModelConfig, Options
from djl_python.core.errors import ModelLoadError
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams
from djl_python.engine.builtin.opening import open_batch
from djl_python.engine.builtin.options import BuiltInOptions
from djl_python.engine.builtin.row import ENGINE
from djl_python.engine.interface import RollingBatch
from djl_python.engine.settings import BuiltInSettings
from tests.checkpoints import RELEASE, build_checkpoint, since
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
        pytest.param("llama", {"device_map": "auto", "max_memory": LITTLE}, marks=since("5.13")),
        pytest.param("llama", {"device_map": "sequential", "max_memory": LITTLE}, marks=since("5.13")),
        pytest.param("llama", {"device_map": "balanced_low_0", "max_memory": LITTLE}, marks=since("5.13")),
        pytest.param("llama", {"device_map": json.dumps({"": "disk"})}, marks=since("5.13")),
        ("llama", {"device_map": json.dumps({"model": "disk", "lm_head": "cpu"})}),
        # On transformers' own cache, with states, with experts.
        pytest.param("bloom", {"device_map": "auto", "max_memory": LITTLE}, marks=since("5.13")),
        pytest.param("qwen3_5", {"device_map": "auto", "max_memory": LITTLE}, marks=since("5.13")),
        pytest.param("qwen2_moe", {"device_map": "auto", "max_memory": LITTLE}, marks=since("5.13")),
    ],
)
def test_greedy_ids_are_those_of_generate(architecture: str, layout: dict[str, str], tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path / "model", architecture)
    batch = opened(path, **layout, offload_folder=str(tmp_path / "offloaded"))
    assert " MiB on disk, of " in batch.info.offloaded
    assert batch.info.warnings == (batch.info.offloaded,)
    requests = random_requests(6, seed=3)
    for number, (prompt, new_tokens) in enumerate(requests):
        batch.add(SequenceRequest(prompt, SamplingParams(max_new_tokens=new_tokens), id=number))
    got = {number: [event.token_id for event in events] for number, events in run_to_end(batch).items()}
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    assert got == {i: greedy(model, prompt, got[i], new_tokens) for i, (prompt, new_tokens) in enumerate(requests)}
    batch.close()


@pytest.mark.skipif(Version("5.13") <= RELEASE, reason="newer transformers run it")
def test_a_model_that_transformers_leaves_on_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="runs no model of which all weights are on disk"):
        opened(build_checkpoint(tmp_path / "model", "llama"), device_map=json.dumps({"": "disk"}))


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
def test_an_impossible_device_map_is_refused_before_loading(options: dict[str, str], reason: str) -> None:
    config = ModelConfig(name="m", option=Options(), engine_options=options)
    with pytest.raises(ModelLoadError) as caught:
        ENGINE.check_model(config)
    assert reason in caught.value.message
    assert ENGINE.options_of(config) == BuiltInOptions(**options)  # type: ignore[arg-type]
