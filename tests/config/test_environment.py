"""What the environment says about a model, and what a worker inherits."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from djl_python.config import ModelConfig, Options, Runtime, engine_environment, venv_directory, worker_environment
from djl_python.config.environment import environment_entries, own_server_environment, state_directory, traces_requests


def entries(**environ: str) -> dict[str, tuple[str, str]]:
    return {key: (entry.value, entry.source) for key, entry in environment_entries(environ).items()}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("OPTION_DTYPE", "option.dtype"),
        ("OPTION_MY_OWN", "option.my_own"),
        ("OPTION_entryPoint", "option.entryPoint"),
        ("OPTION_ENTRYPOINT", "option.entryPoint"),
        ("OPTION_PYTHONEXECUTABLE", "option.pythonExecutable"),
        ("OPTION_mixedCase", "option.mixedCase"),
        ("OPTION_ENGINE", "engine"),
        ("DJL_ENTRY_POINT", "option.entryPoint"),
        ("PREDICT_TIMEOUT", "option.predict_timeout"),
        ("MODEL_LOADING_TIMEOUT", "option.model_loading_timeout"),
        ("TENSOR_PARALLEL_DEGREE", "option.tensor_parallel_degree"),
        ("PIPELINE_PARALLEL_DEGREE", "option.pipeline_parallel_degree"),
        ("HF_MODEL_QUANTIZE", "option.quantize"),
        ("HF_MODEL_TRUST_REMOTE_CODE", "option.trust_remote_code"),
        ("HF_REVISION", "option.revision"),
        ("HF_MODEL_REVISION", "option.revision"),
        ("HF_TASK", "option.task"),
        ("SM_NUM_GPUS", "option.tensor_parallel_degree"),
        ("NUM_SHARD", "option.tensor_parallel_degree"),
        ("TRUST_REMOTE_CODE", "option.trust_remote_code"),
        ("MAX_INPUT_LENGTH", "option.max_input_tokens"),
        ("MAX_BATCH_PREFILL_TOKENS", "option.max_rolling_batch_prefill_tokens"),
        ("MAX_BATCH_SIZE", "option.max_rolling_batch_size"),
        ("CUDA_MEMORY_FRACTION", "option.gpu_memory_utilization"),
    ],
)
def test_names(name: str, key: str) -> None:
    assert entries(**{name: "2"}) == {key: ("2", f"environment {name}")}
    assert entries(**{name: " "}) == {}


def test_strongest_name_counts() -> None:
    everything = {"SM_NUM_GPUS": "1", "TENSOR_PARALLEL_DEGREE": "2", "OPTION_TENSOR_PARALLEL_DEGREE": "4"}
    for name, value in (("OPTION_TENSOR_PARALLEL_DEGREE", "4"), ("TENSOR_PARALLEL_DEGREE", "2"), ("SM_NUM_GPUS", "1")):
        assert entries(**everything) == {"option.tensor_parallel_degree": (value, f"environment {name}")}
        everything[name] = ""


def test_converted_names() -> None:
    assert entries(SM_NUM_GPUS="0") == {}
    assert entries(ENABLE_CUDA_GRAPHS="True")["option.enforce_eager"][0] == "false"
    assert entries(ENABLE_CUDA_GRAPHS="0")["option.enforce_eager"][0] == "true"


def test_other_variables_are_not_ours() -> None:
    assert (
        entries(PATH="/bin", OPTION_="x", OPTIONS_A="x", option_a="x", HF_TOKEN="x", MAX_CONCURRENT_REQUESTS="1") == {}
    )


def test_worker_environment() -> None:
    config = ModelConfig(name="m", path="/models/m", option=Options(env="A=1, B=x=y,C="))
    environment = worker_environment(config, {"A": "0", "PATH": "/bin", "PYTHONPATH": "/lib1"})
    assert environment == {
        "A": "1",
        "B": "x=y",
        "C": "",
        "PATH": "/bin",
        "PYTHONPATH": "/lib1",
        "PYTHONUNBUFFERED": "1",
    }
    assert worker_environment(ModelConfig(name="hub"), {}) == {"PYTHONUNBUFFERED": "1"}
    assert worker_environment(ModelConfig(name="m"), {"DJL_OFFLINE": "true"})["HF_HUB_OFFLINE"] == "1"
    offline = ModelConfig(name="m", option=Options(env="DJL_OFFLINE=1"))
    assert worker_environment(offline, {})["HF_HUB_OFFLINE"] == "1"
    assert worker_environment(offline, {"HF_HUB_OFFLINE": "0"})["HF_HUB_OFFLINE"] == "0"


def test_a_worker_gets_no_keys() -> None:
    assert "DJL_SERVING_API_KEY" not in worker_environment(ModelConfig(name="m"), {"DJL_SERVING_API_KEY": "djl_1"})


def test_the_environment_of_workers_with_one_of_their_own() -> None:
    config = ModelConfig(
        name="m",
        option=Options(env="PYTHONPATH=/mine"),
        runtime=Runtime(executable="/venv/bin/python", venv="/venv", package_path="/cache/packages"),
    )
    assert worker_environment(config, {"PATH": "/bin", "PYTHONPATH": "/lib1"}) == {
        "PATH": "/venv/bin:/bin",
        "PYTHONPATH": "/cache/packages:/mine",
        "PYTHONUNBUFFERED": "1",
        "VIRTUAL_ENV": "/venv",
    }


def test_where_environments_are(tmp_path: Path) -> None:
    assert venv_directory("/cache", {}) == Path("/cache/venvs")
    assert venv_directory("/cache", {"DJL_VENV_DIR": str(tmp_path)}) == tmp_path
    assert venv_directory("", {"DJL_VENV_DIR": ""}) == Path.home() / ".cache" / "djl-serving" / "venvs"


def test_engine_environment() -> None:
    """What was set by whoever started the server stays."""

    def defaults(environ: Mapping[str, str]) -> Mapping[str, str]:
        return {"SPIN": "2000", "SEEN": environ["A"]}

    assert engine_environment(defaults, {"A": "0"}) == {"A": "0", "SPIN": "2000", "SEEN": "0"}
    assert engine_environment(defaults, {"A": "0", "SPIN": "5"})["SPIN"] == "5"


ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.mark.parametrize(
    ("environ", "traced"),
    [
        ({}, False),
        ({ENDPOINT: "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
        ({ENDPOINT: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({ENDPOINT: "http://c:4318", "OTEL_SDK_DISABLED": "TRUE"}, False),
        ({ENDPOINT: " "}, False),
    ],
)
def test_opentelemetrys_variables_turn_traces_on(environ: dict[str, str], traced: bool) -> None:
    warnings: list[str] = []
    assert traces_requests(environ, warnings) is traced
    assert warnings == []


@pytest.mark.parametrize(
    ("environ", "warning"),
    [
        (
            {ENDPOINT: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            f"environment {ENDPOINT} has no effect, there are no traces: OTEL_EXPORTER_OTLP_PROTOCOL=grpc, "
            "expected http/protobuf",
        ),
        (
            {"OTEL_TRACES_EXPORTER": "zipkin"},
            "environment OTEL_TRACES_EXPORTER=zipkin has no effect, there are no traces: expected otlp or none",
        ),
    ],
)
def test_traces_that_can_not_be_had_are_told(environ: dict[str, str], warning: str) -> None:
    warnings: list[str] = []
    assert traces_requests(environ, warnings) is False
    assert warnings == [warning]


def test_traces_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    for name in [name for name in sys.modules if name.startswith("opentelemetry.")]:
        monkeypatch.delitem(sys.modules, name)
    warnings: list[str] = []
    assert traces_requests({ENDPOINT: "http://c:4318"}, warnings) is False
    assert warnings[0].endswith("pip install 'djl-serving[tracing]' brings what is needed")


def test_the_environment_of_a_server_of_ones_own() -> None:
    environ = {"OPTION_DTYPE": "bf16", "HF_MODEL_ID": "a/b", "SERVING_INFERENCE_ADDRESS": "http://0.0.0.0:80"}
    assert own_server_environment(None, environ) == {"OPTION_DTYPE": "bf16", "SERVING_DRAIN_DELAY": "0"}
    assert own_server_environment(None, {"SERVING_DRAIN_DELAY": "9"}) == {"SERVING_DRAIN_DELAY": "9"}
    assert own_server_environment(Path("/s"), environ) == {
        "OPTION_DTYPE": "bf16",
        "SERVING_DRAIN_DELAY": "0",
        "SERVING_INFERENCE_ADDRESS": "unix:/s",
        "SERVING_LOG_FORMAT": "text",
        "SERVING_WAIT_MODEL_LOADING": "true",
    }


def test_where_state_is_kept() -> None:
    assert state_directory({"XDG_STATE_HOME": "/state"}) == Path("/state/djl-serving")
    for environ in ({}, {"XDG_STATE_HOME": "relative"}):
        assert state_directory(environ) == Path.home() / ".local" / "state" / "djl-serving"
