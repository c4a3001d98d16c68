from __future__ import annotations

import json
from pathlib import Path

import pytest

from djl_python.config import ModelConfig, Options
from djl_python.core.errors import ModelLoadError
from djl_python.engine.interface import EngineSettings
from djl_python.engine.row import engine_of
from djl_python.engine.vllm.arguments import VllmOptions
from djl_python.engine.vllm.row import ENGINE


def environment(**options: str | int) -> dict[str, str]:
    config = ModelConfig(name="m", option=Options(**options))  # type: ignore[arg-type]
    return dict(ENGINE.environment(config, VllmOptions(), {}))


def test_the_table_of_engines_has_vllm() -> None:
    assert engine_of("vllm") is ENGINE


def test_on_a_cpu_it_takes_a_part_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("djl_python.engine.devices.free_memory.available_bytes", lambda: 20 << 30)
    variables = environment(device="cpu")
    assert (variables["VLLM_CPU_KVCACHE_SPACE"], variables["OMP_NUM_THREADS"]) == ("8", "1")
    monkeypatch.setattr("djl_python.engine.devices.free_memory.available_bytes", lambda: 1 << 30)
    assert environment(device="cpu")["VLLM_CPU_KVCACHE_SPACE"] == "1"


def test_vllms_process_sees_its_models_gpus_and_sends_no_usage_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("djl_python.engine.vllm.row.has_gpu", lambda: True)
    assert environment(device="cuda:2", tensor_parallel_degree=2)["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert environment(device="cuda:1")["CUDA_VISIBLE_DEVICES"] == "1"
    variables = environment()
    assert "CUDA_VISIBLE_DEVICES" not in variables and "VLLM_CPU_KVCACHE_SPACE" not in variables
    assert variables["VLLM_NO_USAGE_STATS"] == "1"


def test_where_it_is_not_there_the_command_that_brings_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelLoadError) as caught:
        ENGINE.check_model(ModelConfig(name="m", cache_dir="/nowhere"))
    assert caught.value.message == (
        "option.rolling_batch=vllm needs vllm; install it with: djl-serving engines install vllm"
    )


def test_an_adapter_beyond_the_highest_rank_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    (tmp_path / "adapter_config.json").write_text('{"r": 32}')
    config = ModelConfig(name="m", adapters={"tom": str(tmp_path)}, engine_options={"max_lora_rank": 16})
    with pytest.raises(ModelLoadError, match=r"^option\.max_lora_rank=16: the adapter tom has rank 32$"):
        ENGINE.check_model(config)
    ENGINE.check_model(ModelConfig(name="m", adapters={"tom": str(tmp_path)}))


def test_vllms_settings_have_room_for_adapters(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 32}')
    common = EngineSettings(model_path="/model", device="cpu", adapters={"tom": str(tmp_path)})
    made = ENGINE.settings(common, VllmOptions(enable_lora=True, max_loras=1), {})
    own = made.own  # type: ignore[attr-defined]
    assert {name: own[name] for name in ("enable_lora", "max_loras", "max_lora_rank")} == {
        "enable_lora": "true",
        "max_loras": "3",
        "max_lora_rank": "32",
    }


def test_vllms_settings_have_room_for_a_prompts_images_only() -> None:
    made = ENGINE.settings(EngineSettings(model_path="/model", max_images=3), VllmOptions(), {})
    assert json.loads(made.own["limit_mm_per_prompt"]) == {"image": 3, "video": 0, "audio": 0}  # type: ignore[attr-defined]
