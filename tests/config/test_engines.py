"""The options that only one engine takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from djl_python.config import ENGINES, ENVIRONMENT_STAMP, ModelConfig, Runtime, ServerConfig, describe, own_options
from djl_python.config.binding import settings_of
from djl_python.config.engines import NoOptions, row_of
from djl_python.config.settings.options import Options
from djl_python.config.specs import ModelSpec
from djl_python.core.errors import ConfigError, ModelLoadError
from djl_python.core.types import SamplingParams
from djl_python.engine.row import Engine, engine_of
from djl_python.sources import load_model_config


def load(directory: Path, properties: str, environ: Mapping[str, str] = MappingProxyType({})) -> ModelConfig:
    (directory / "config.json").write_text("{}")
    (directory / "serving.properties").write_text(properties)
    return load_model_config(ModelSpec(name="m", url=str(directory)), ServerConfig(), environ)


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


def test_an_engine_without_its_packages_is_refused() -> None:
    row = Engine(
        name="deep",
        summary="Goes deep.",
        opens="deep:Engine",
        options=NoOptions,
        requires=("json", "deep_thoughts"),
    )
    with pytest.raises(ModelLoadError) as caught:
        row.check_model(ModelConfig(name="m"))
    assert caught.value.message == (
        "option.rolling_batch=deep needs deep_thoughts; it can't be installed with pip alone"
    )


REMEDIES = {
    "deepspeed": "; install it with: djl-serving engines install deepspeed",
}


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("vllm", "; install it with: djl-serving engines install vllm"),
        ("lmi-dist", "; install it with: djl-serving engines install vllm"),
        ("trtllm", "; on a machine with a GPU, install it with: djl-serving engines install trtllm"),
        ("deepspeed", REMEDIES["deepspeed"]),
        ("neuronx", ""),
    ],
)
def test_a_model_of_an_engine_that_is_not_there_is_served_and_that_is_said(
    name: str, remedy: str, tmp_path: Path
) -> None:
    config = load(tmp_path, f"option.rolling_batch={name}\noption.threads=2\n")
    assert (config.option.rolling_batch, config.engine_options) == ("auto", {"threads": 2})
    assert config.warnings == (
        f"serving.properties:1: option.rolling_batch={name}: this engine is not available here; the built-in engine "
        f"serves the model{remedy}",
    )
    with pytest.raises(ConfigError, match=f"rolling_batch={name}: this engine is not available here"):
        load(tmp_path, f"option.rolling_batch={name}\noption.engine_fallback=error\n")


@pytest.mark.parametrize("name", ["Rust", "OnnxRuntime", "PyTorch", "Rolling"])
def test_djls_other_engines_are_pythons_here(name: str, tmp_path: Path) -> None:
    config = load(tmp_path, f"engine={name}\n")
    assert config.engine == "Python"
    assert config.warnings == (
        f"serving.properties:1: engine={name}: this engine is not available here; the model is served with "
        "engine=Python",
    )
    with pytest.raises(ConfigError, match=f"engine={name}: this engine is not available here"):
        load(tmp_path, f"engine={name}\noption.engine_fallback=error\n")


@pytest.mark.parametrize(
    "properties",
    ["option.async_mode=True", "option.entryPoint=djl_python.lmi_vllm.vllm_async_service"],
)
def test_lmis_async_handlers_batch_continuously(properties: str, tmp_path: Path) -> None:
    assert load(tmp_path, f"{properties}\noption.rolling_batch=disable\n").option.rolling_batch == "auto"


def test_a_value_that_only_other_engines_have(tmp_path: Path) -> None:
    config = load(tmp_path, "option.quantize=fp8\noption.tool_call_parser=openai\n")
    assert (config.engine_options, config.option.tool_call_parser) == ({}, "")
    assert [warning.partition(" has no effect: ")[0] for warning in config.warnings] == [
        "serving.properties:2: option.tool_call_parser=openai",
        "serving.properties:1: option.quantize=fp8",
    ]


def installed(name: str, cache: Path) -> dict[str, str]:
    """The environment of a server whose cache has what `djl-serving engines install` makes."""
    row = row_of(name)
    assert row is not None and row.distribution is not None
    venv = row.distribution.directory(name, "cpu", str(cache))
    venv.mkdir(parents=True)
    (venv / ENVIRONMENT_STAMP).write_text("{}")
    return {"DJL_CACHE_DIR": str(cache)}


@pytest.fixture
def vllm_is_here(tmp_path: Path) -> dict[str, str]:
    return installed("vllm", tmp_path / "cache")


@pytest.fixture
def deepspeed_is_here(tmp_path: Path) -> dict[str, str]:
    return installed("deepspeed", tmp_path / "cache")


#: What names DeepSpeed in DJL's configurations.
DEEPSPEED = ["engine=DeepSpeed", "option.entryPoint=djl_python.deepspeed", "option.rolling_batch=deepspeed"]


@pytest.mark.parametrize("setting", DEEPSPEED)
def test_deepspeed_serves_where_it_is_installed(
    setting: str, tmp_path: Path, deepspeed_is_here: dict[str, str]
) -> None:
    text = f"{setting}\noption.quantize=smoothquant\noption.max_tokens=512\noption.return_tuple=false\n"
    config = load(tmp_path, text, deepspeed_is_here)
    assert (config.engine, config.option.rolling_batch) == ("Python", "deepspeed")
    assert config.engine_options == {"max_tokens": 512}
    assert config.warnings == (
        "serving.properties:2: option.quantize=smoothquant has no effect: DeepSpeed places the checkpoint's weights as "
        "they are",
        "serving.properties:4: option.return_tuple has no effect: the model's own code decides what its layers take "
        "and return",
    )


@pytest.mark.parametrize("setting", DEEPSPEED)
def test_a_model_of_deepspeeds_is_served_without_it_and_that_is_said(setting: str, tmp_path: Path) -> None:
    told = f"serving.properties:1: {setting}: this engine is not available here"
    config = load(tmp_path, f"{setting}\n")
    assert config.option.rolling_batch == "auto"
    assert config.warnings == (f"{told}; the built-in engine serves the model{REMEDIES['deepspeed']}",)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"{setting}\noption.engine_fallback=error\n")
    assert caught.value.message == f"{told} (option.engine_fallback=error){REMEDIES['deepspeed']}"


@pytest.mark.parametrize(("other", "serves"), [("disable", "disable"), ("builtin", "auto")])
def test_a_rolling_batch_that_is_named_counts(
    other: str, serves: str, tmp_path: Path, deepspeed_is_here: dict[str, str]
) -> None:
    config = load(tmp_path, f"engine=DeepSpeed\noption.rolling_batch={other}\n", deepspeed_is_here)
    assert config.option.rolling_batch == serves
    assert config.warnings == (
        f"serving.properties:1: engine=DeepSpeed has no effect: option.rolling_batch={other} counts",
    )


@pytest.mark.parametrize("name", ["vllm", "lmi-dist"])
def test_vllm_serves_where_it_is_installed(name: str, tmp_path: Path, vllm_is_here: dict[str, str]) -> None:
    text = (
        f"option.rolling_batch={name}\noption.quantize=fp8\noption.enforce_eager=true\noption.async_scheduling=true\n"
    )
    config = load(tmp_path, text, vllm_is_here)
    assert (config.option.rolling_batch, config.engine_options) == ("vllm", {"quantize": "fp8", "enforce_eager": True})
    assert config.warnings == ("serving.properties:4: option.async_scheduling is passed to vllm",)


@pytest.mark.parametrize(
    ("settings", "engine", "said"),
    [
        ("", "vllm", "vllm serves the model, as there is a GPU; with option.rolling_batch=builtin"),
        ("option.rolling_batch=auto", "vllm", "vllm serves the model, as there is a GPU"),
        ("option.rolling_batch=builtin", "auto", ""),
        ("option.device=cpu", "auto", ""),
    ],
)
def test_on_a_gpu_auto_is_vllm_where_it_is_installed(
    settings: str, engine: str, said: str, tmp_path: Path, vllm_is_here: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("djl_python.config.loading.has_gpu", lambda: True)
    config = load(tmp_path, f"{settings}\n", vllm_is_here)
    assert config.option.rolling_batch == engine
    assert said in "".join(config.warnings) and bool(said) == bool(config.warnings)
    if not settings:
        without = load(tmp_path, "\n", {"DJL_CACHE_DIR": str(tmp_path / "empty")})
        assert without.option.rolling_batch == "auto"
        assert without.warnings == (
            "on a GPU vllm reads long prompts faster than the built-in engine, which serves the model: "
            "install it with: djl-serving engines install vllm",
        )


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ("option.rolling_batch=trtllm", "option.rolling_batch=trtllm"),
        ("engine=MPI\noption.rolling_batch=trtllm", "option.rolling_batch=trtllm"),
        ("option.entryPoint=djl_python.tensorrt_llm", "option.entryPoint=djl_python.tensorrt_llm"),
        (
            "option.entryPoint=djl_python.lmi_trtllm.trtllm_async_service\noption.rolling_batch=disable",
            "option.entryPoint=djl_python.lmi_trtllm.trtllm_async_service",
        ),
        (
            "option.entryPoint=djl_python.lmi_vllm.vllm_async_service\noption.rolling_batch=disable",
            "option.entryPoint=djl_python.lmi_vllm.vllm_async_service",
        ),
    ],
)
def test_lmis_ways_to_name_an_engine(
    properties: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "vllm" if "vllm" in named else "trtllm"
    without = load(tmp_path, properties)
    assert without.option.rolling_batch == "auto"
    assert f"{named}: this engine is not available here; the built-in engine serves the model; " in without.warnings[0]
    monkeypatch.setattr(Engine, "runtime", lambda self, cache_dir: Runtime(executable="python"))
    assert load(tmp_path, properties).option.rolling_batch == name


def test_trtllms_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "runtime", lambda self, cache_dir: Runtime(executable="python"))
    config = load(
        tmp_path,
        "option.rolling_batch=trtllm\noption.max_input_len=1024\noption.max_output_len=2048\n"
        "option.batch_scheduler_policy=guaranteed_no_evict\noption.gpt_model_version=starcoder\n"
        "option.attn_backend=FLASHINFER\n",
    )
    assert config.option.max_input_tokens == 1024
    assert config.engine_options == {"max_output_len": 2048, "batch_scheduler_policy": "guaranteed_no_evict"}
    assert config.warnings == (
        "serving.properties:5: option.gpt_model_version has no effect: TensorRT-LLM compiles nothing since its release "
        "1.0",
        "serving.properties:6: option.attn_backend is passed to trtllm",
    )
