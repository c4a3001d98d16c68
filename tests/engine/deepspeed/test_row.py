from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from djl_python.config import ModelConfig, Options
from djl_python.core.errors import ModelLoadError
from djl_python.engine.deepspeed.options import DeepSpeedOptions
from djl_python.engine.deepspeed.row import ENGINE
from djl_python.engine.interface import EngineSettings
from djl_python.engine.row import engine_of
from djl_python.engine.settings import BuiltInSettings


def config(folder: Path, own: dict[str, Any], **options: Any) -> ModelConfig:
    return ModelConfig(
        name="m",
        path=str(folder),
        cache_dir=str(folder),
        option=Options(rolling_batch="deepspeed", **options),
        engine_options=own,
        provenance={"option.deepspeed_config_path": "serving.properties:2"},
    )


def write(folder: Path, told: dict[str, Any]) -> dict[str, Any]:
    (folder / "ds.json").write_text(json.dumps(told))
    return {"deepspeed_config_path": "ds.json"}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())


def test_the_table_of_engines_has_deepspeed() -> None:
    assert engine_of("deepspeed") is ENGINE


def test_the_batch_is_the_built_in_one_over_weights_that_deepspeed_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a worker runs in the model's directory
    options = DeepSpeedOptions(block_size=8, max_tokens=512, **write(tmp_path, {"zero_optimization": {"stage": 3}}))
    settings = ENGINE.settings(EngineSettings(model_path="/model", device="cpu"), options, {})
    assert isinstance(settings, BuiltInSettings)
    assert (settings.block_size, settings.max_model_len, settings.placement_name) == (8, 512, "DeepSpeed")
    assert settings.placement_options["zero"] == {"zero_optimization": {"stage": 3}}
    longer = EngineSettings(model_path="/model", device="cpu", max_model_len=4096)
    assert ENGINE.settings(longer, options, {}).max_model_len == 4096


def test_kernels_have_room_for_as_many_tokens_as_in_djl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("djl_python.engine.deepspeed.row.has_gpu", lambda: True)
    common = EngineSettings(model_path="/model")
    assert ENGINE.settings(common, DeepSpeedOptions(replace_with_kernel_inject=True), {}).max_model_len == 1024
    assert ENGINE.settings(common, DeepSpeedOptions(), {}).max_model_len is None


@pytest.mark.usefixtures("installed")
def test_all_that_is_wrong_is_said_with_its_place(tmp_path: Path) -> None:
    own = write(tmp_path, {"zero_optimization": 3, "tensor_parallel": {"tp_size": 4}})
    wrong = config(tmp_path, own | {"draft_model_id": "x", "speculative": "ngram"}, device="cpu")
    with pytest.raises(ModelLoadError) as caught:
        ENGINE.check_model(wrong)
    assert caught.value.message.splitlines() == [
        "option.speculative=ngram: there is option.draft_model_id too; expected one of them",
        "serving.properties:2: option.deepspeed_config_path: zero_optimization: expected a JSON object",
        "serving.properties:2: option.deepspeed_config_path: tensor_parallel.tp_size: 4: option.tensor_parallel_degree "
        "gives the model 1 device(s); expected the same",
    ]


def test_options_without_effect_have_a_remark(tmp_path: Path) -> None:
    own = write(tmp_path, {"fp16": {}}) | {"checkpoint": "ds.json"}
    assert ENGINE.without_effect(config(tmp_path, own, device="cpu"), DeepSpeedOptions(**own)) == [
        "option.deepspeed_config_path: fp16 has no effect: option.dtype says it",
        "option.checkpoint=ds.json has no effect: the Hugging Face checkpoint is read",
        "option.rolling_batch=deepspeed has no effect: DeepSpeed has nothing to do for a model on one device without "
        "option.deepspeed_config_path or option.replace_with_kernel_inject",
    ]
    shared = config(tmp_path, {}, device="cpu", tensor_parallel_degree=2)
    assert ENGINE.without_effect(shared, DeepSpeedOptions()) == []
    missing = DeepSpeedOptions(deepspeed_config_path="nowhere.json")  # which `check` says
    assert ENGINE.without_effect(config(tmp_path, {}, device="cpu"), missing) == []


def test_compiled_extensions_are_kept_in_the_engines_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = ENGINE.environment(config(tmp_path, {}, device="cpu"), DeepSpeedOptions(), {})
    assert environment["DS_ACCELERATOR"] == "cpu"
    assert environment["TORCH_EXTENSIONS_DIR"] == str(tmp_path / "engines" / "extensions")
    monkeypatch.setattr("djl_python.engine.deepspeed.row.has_gpu", lambda: True)
    environment = ENGINE.environment(config(tmp_path, {}), DeepSpeedOptions(), {"PYTORCH_CUDA_ALLOC_CONF": "x"})
    assert (environment["DS_ACCELERATOR"], "PYTORCH_CUDA_ALLOC_CONF" in environment) == ("cuda", False)


def test_where_it_is_not_there_the_command_that_brings_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelLoadError, match="needs deepspeed; install it with: djl-serving engines install deepspeed"):
        ENGINE.check_model(config(tmp_path, {}))
