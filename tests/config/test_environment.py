"""What the environment says about a model, and what a worker inherits."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from djl_python.config import ModelConfig, Options, engine_environment, worker_environment
from djl_python.config.environment import environment_entries


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
        ("HF_TASK", "option.task"),
        ("SM_NUM_GPUS", "option.tensor_parallel_degree"),
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


def test_engine_environment() -> None:
    """What was set by whoever started the server stays."""

    def defaults(environ: Mapping[str, str]) -> Mapping[str, str]:
        return {"SPIN": "2000", "SEEN": environ["A"]}

    assert engine_environment(defaults, {"A": "0"}) == {"A": "0", "SPIN": "2000", "SEEN": "0"}
    assert engine_environment(defaults, {"A": "0", "SPIN": "5"})["SPIN"] == "5"
