from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from djl_python.config import ModelConfig, Options
from djl_python.core.errors import ModelLoadError
from djl_python.engine.interface import EngineSettings
from djl_python.engine.row import engine_of
from djl_python.engine.trtllm.arguments import TrtllmOptions
from djl_python.engine.trtllm.row import ENGINE


def model(**values: Any) -> ModelConfig:
    return ModelConfig(name="m", cache_dir="/nowhere", **values)


def test_the_table_of_engines_has_trtllm() -> None:
    assert engine_of("trtllm") is ENGINE


def test_where_it_is_not_there_its_needs_and_the_command_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelLoadError) as caught:
        ENGINE.check_model(model())
    assert caught.value.message == (
        "option.rolling_batch=trtllm needs tensorrt_llm and a GPU; on a machine with a GPU, install it with: "
        "djl-serving engines install trtllm"
    )


@pytest.mark.usefixtures("pretended")
def test_trtllm_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ENGINE.check_model(model())
    with pytest.raises(ModelLoadError, match=r"runs on GPUs alone; option\.device=cpu"):
        ENGINE.check_model(model(option=Options(device="cpu")))
    monkeypatch.setattr("djl_python.engine.row.has_gpu", lambda: False)
    with pytest.raises(ModelLoadError, match=r"^option\.rolling_batch=trtllm needs a GPU; on a machine"):
        ENGINE.check_model(model())


def test_an_engine_that_tensorrt_compiled_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"build_config": {}, "pretrained_config": {}}))
    with pytest.raises(ModelLoadError, match="expected the checkpoint that it was made of"):
        ENGINE.check_checkpoint(model(), TrtllmOptions(), "option.model_id", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    ENGINE.check_checkpoint(model(), TrtllmOptions(), "option.model_id", tmp_path)


def test_options_without_effect_have_a_remark() -> None:
    untested, quantize, memory = ENGINE.without_effect(
        model(provenance={"option.gpu_memory_utilization": "serving.properties:1"}), TrtllmOptions(quantize="awq")
    )
    assert "untested on hardware" in untested
    assert quantize.startswith("option.quantize=awq has no effect")
    assert "option.kv_cache_free_gpu_mem_fraction" in memory
    assert len(ENGINE.without_effect(model(), TrtllmOptions())) == 1


def test_trtllms_process_sees_the_gpus_of_its_model() -> None:
    option = Options(device="cuda:2", tensor_parallel_degree=2, pipeline_parallel_degree=2)
    assert ENGINE.environment(model(option=option), TrtllmOptions(), {}) == {"CUDA_VISIBLE_DEVICES": "2,3,4,5"}
    assert ENGINE.environment(model(), TrtllmOptions(), {}) == {}


def test_trtllms_settings_have_its_own_and_the_common_options() -> None:
    common = EngineSettings(model_path="/model", pipeline_parallel_degree=2)
    made = ENGINE.settings(common, TrtllmOptions(tokens_per_block=16), {})
    assert (made.own.tokens_per_block, made.pipeline_parallel_degree) == (16, 2)  # type: ignore[attr-defined]
