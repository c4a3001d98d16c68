"""What is said of keys that do not do what whoever wrote them may think."""

from __future__ import annotations

from pathlib import Path

import pytest

from djl_python.config import ServerConfig, parse_model_spec
from djl_python.core.errors import ConfigError
from djl_python.sources import load_model_config


def warnings(directory: Path, properties: str) -> list[str]:
    (directory / "serving.properties").write_text(properties)
    config = load_model_config(parse_model_spec(str(directory)), ServerConfig(), {})
    return [warning.removeprefix("serving.properties:1: ") for warning in config.warnings]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("option.unheard_of=1", "option.unheard_of is not known"),
        ("option.dtpye=fp16", "option.dtpye is not known; did you mean option.dtype?"),
        ("dtype=fp16", "dtype is not known; did you mean option.dtype?"),
        ("model_loading_timeout=9", "model_loading_timeout is not known; did you mean option.model_loading_timeout?"),
        (
            "max_request_size=9",
            "max_request_size is the server's, not a model's: it counts in config.properties, or as "
            "SERVING_MAX_REQUEST_SIZE",
        ),
        (
            "plugin_folder=plugins",
            "plugin_folder has no effect: it is for plug-ins in Java",
        ),
        (
            "parallel_loading=true",
            "parallel_loading has no effect: the server starts the processes of an engine itself",
        ),
        ("option.dtype=", "option.dtype is empty: the default counts"),
        (
            "option.enable_kv_cache_reuse=true",
            "option.enable_kv_cache_reuse has no effect: only option.rolling_batch=trtllm takes it",
        ),
        (
            "option.max_new_tokens=50",
            "option.max_new_tokens has no effect: each request sets its own sampling and length",
        ),
        (
            "option.enable_expert_parallel=true",
            "option.enable_expert_parallel has no effect: it is for vLLM (option.rolling_batch=vllm)",
        ),
        (
            "option.compiled_graph_path=s3://bucket/neff",
            "option.compiled_graph_path has no effect: it is for Neuron devices",
        ),
        ("option.width=512", "option.width has no effect: no built-in handler makes images"),
        ("option.device_id=0", "option.device_id has no effect: load_on_devices sets the devices of workers"),
    ],
)
def test_a_key_that_has_no_effect_has_a_remark(checkpoint: Path, line: str, said: str) -> None:
    assert warnings(checkpoint, line) == [said]


def test_code_of_the_models_own_gets_what_nobody_knows(checkpoint: Path) -> None:
    line, said = "option.unheard_of=1", "option.unheard_of is not known: passed to the handler"
    assert warnings(checkpoint, line) == ["option.unheard_of is not known"]
    assert warnings(checkpoint, f"{line}\noption.rolling_batch=theirs:Engine") == [said]
    assert warnings(checkpoint, f"{line}\noption.entryPoint=theirs.module") == [said]
    (checkpoint / "model.py").touch()
    assert warnings(checkpoint, line) == [said]


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("model_id=a/b", "model_id is not known; did you mean option.model_id?"),
        ("option.model-id=a/b", "option.model-id is not known; did you mean option.model_id?"),
        ("option.MODEL_ID=a/b", "option.MODEL_ID is not known; did you mean option.model_id?"),
        ("opiton.s3url=s3://a/b", "opiton.s3url is not known; did you mean option.s3url?"),
    ],
)
def test_a_checkpoint_under_another_name_than_the_options(tmp_path: Path, line: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        warnings(tmp_path, line)
    assert caught.value.message.endswith(f"option.entryPoint is set; serving.properties:1: {meant}")


def test_keys_of_a_handler_of_ours_are_known_to_it_alone(checkpoint: Path) -> None:
    for name, handler in (("model_format", "sklearn"), ("model_format", "xgboost"), ("skops_trusted_types", "sklearn")):
        entry_point = f"\noption.entryPoint=djl_python.{handler}_handler"
        assert warnings(checkpoint, f"option.{name}=x{entry_point}") == []
        assert warnings(checkpoint, f"option.{name}=x") == [f"option.{name} is not known"]
    near = "option.model_fromat is not known: passed to the handler; did you mean option.model_format?"
    assert warnings(checkpoint, "option.model_fromat=x\noption.entryPoint=djl_python.xgboost_handler") == [near]


def test_a_key_that_the_models_code_names_is_known_unless_it_resembles_another(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "def handle(inputs):\n    inputs.get_property('my_labels')\n    job_queue_siz = 1\n"
    )
    (tmp_path / "folder.py").mkdir()
    assert warnings(tmp_path, "option.my_labels=a") == []
    assert warnings(tmp_path, "option.labels=a") == ["option.labels is not known: passed to the handler"]
    near = "option.job_queue_siz is not known: passed to the handler; did you mean job_queue_size?"
    assert warnings(tmp_path, "option.job_queue_siz=1") == [near]
