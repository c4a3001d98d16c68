"""The options that only one engine takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from djl_python.config import ENGINES, ModelConfig, ServerConfig, describe, load_model_config, own_options
from djl_python.config.binding import settings_of
from djl_python.config.engines import NoOptions
from djl_python.config.settings import Options
from djl_python.config.specs import ModelSpec
from djl_python.core.errors import ConfigError, ModelLoadError
from djl_python.core.types import SamplingParams
from djl_python.engine.interface import Engine, engine_of


def load(directory: Path, properties: str) -> ModelConfig:
    (directory / "config.json").write_text("{}")
    (directory / "serving.properties").write_text(properties)
    return load_model_config(ModelSpec(name="m", url=str(directory)), ServerConfig(), {})


@pytest.mark.parametrize("name", ENGINES)
def test_a_row_is_complete(name: str) -> None:
    row: Engine[Any] = engine_of(name)
    assert row.name == name
    assert row.summary.endswith(".")
    assert row.parameters <= set(SamplingParams.__struct_fields__)
    everybodys = {setting.key for setting in settings_of(Options, "option.")}
    for setting in settings_of(own_options(name), "option."):
        assert setting.help
        assert {setting.key, *setting.aliases}.isdisjoint(everybodys)
    assert row.options_of(ModelConfig(name="m")) == row.options()


def test_an_engines_own_options_are_checked_and_kept(tmp_path: Path) -> None:
    config = load(tmp_path, "option.kernels=torch\noption.threads=2\n")
    assert config.engine_options == {"kernels": "torch", "threads": 2}
    assert msgspec.convert(config.engine_options, own_options("auto")).kernels == "torch"  # type: ignore[attr-defined]
    assert "option.kernels" in describe(config)
    with pytest.raises(ConfigError, match=r"properties:1: option.kernels=c: expected one of auto, native, torch"):
        load(tmp_path, "option.kernels=c\n")


def test_the_dynamic_batch_schema_has_the_built_in_engines_options(tmp_path: Path) -> None:
    assert load(tmp_path, "option.rolling_batch=disable\noption.threads=2\n").engine_options == {"threads": 2}


def test_an_option_of_another_engine_is_said(tmp_path: Path) -> None:
    config = load(tmp_path, "option.rolling_batch=echo\noption.kernels=torch\n")
    assert config.engine_options == {}
    assert config.warnings == (
        "serving.properties:2: option.kernels has no effect: only option.rolling_batch=auto takes it",
    )


def test_an_engine_of_the_users_has_no_declared_options(tmp_path: Path) -> None:
    config = load(tmp_path, "option.rolling_batch=mine:Engine\noption.depth=3\n")
    assert config.engine_options == {}
    assert config.properties["depth"] == "3"
    assert engine_of("mine:Engine").opens == "mine:Engine"


def test_what_an_engine_needs_and_is_not_installed_is_said() -> None:
    row = Engine(
        name="deep",
        summary="Goes deep.",
        opens="deep:Engine",
        options=NoOptions,
        requires=("json", "deep_thoughts"),
        install="pip install deep-thoughts",
    )
    with pytest.raises(ModelLoadError) as caught:
        row.check_model(ModelConfig(name="m"))
    assert caught.value.message == (
        "option.rolling_batch=deep needs deep_thoughts, not installed here: pip install deep-thoughts"
    )


@pytest.mark.parametrize("name", ["vllm", "lmi-dist", "trtllm", "deepspeed", "neuronx"])
def test_a_model_of_an_engine_that_is_not_there_is_served_and_that_is_said(name: str, tmp_path: Path) -> None:
    config = load(tmp_path, f"option.rolling_batch={name}\noption.threads=2\n")
    assert (config.option.rolling_batch, config.engine_options) == ("auto", {"threads": 2})
    assert config.warnings == (
        f"serving.properties:1: option.rolling_batch={name}: there is no such engine here: the built-in one serves the "
        "model",
    )
    with pytest.raises(ConfigError, match=f"rolling_batch={name}: there is no such engine here"):
        load(tmp_path, f"option.rolling_batch={name}\noption.engine_fallback=error\n")


@pytest.mark.parametrize("name", ["DeepSpeed", "Rust", "OnnxRuntime", "PyTorch", "Rolling"])
def test_djls_other_engines_are_pythons_here(name: str, tmp_path: Path) -> None:
    config = load(tmp_path, f"engine={name}\n")
    assert config.engine == "Python"
    assert config.warnings == (
        f"serving.properties:1: engine={name}: there is no such engine here: the model is served with engine=Python",
    )
    with pytest.raises(ConfigError, match=f"engine={name}: there is no such engine here"):
        load(tmp_path, f"engine={name}\noption.engine_fallback=error\n")


@pytest.mark.parametrize(
    "properties",
    ["option.async_mode=True", "option.entryPoint=djl_python.lmi_vllm.vllm_async_service"],
)
def test_lmis_async_handlers_batch_continuously(properties: str, tmp_path: Path) -> None:
    assert load(tmp_path, f"{properties}\noption.rolling_batch=disable\n").option.rolling_batch == "auto"


def test_a_value_that_only_other_engines_have(tmp_path: Path) -> None:
    config = load(tmp_path, "option.quantize=fp8\noption.tool_call_parser=qwen3_coder\n")
    assert (config.engine_options, config.option.tool_call_parser) == ({}, "")
    assert [warning.partition(" has no effect: ")[0] for warning in config.warnings] == [
        "serving.properties:2: option.tool_call_parser=qwen3_coder",
        "serving.properties:1: option.quantize=fp8",
    ]
