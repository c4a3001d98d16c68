"""What SageMaker's variables stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from djl_python.config import ModelSpec, load_server_config
from djl_python.config.sagemaker.variables import log_level
from djl_python.core.errors import ConfigError
from djl_python.sources import load_model_config


def test_the_port_is_the_platforms_and_the_host_stays() -> None:
    bound = {"SAGEMAKER_BIND_TO_PORT": "9001"}
    config = load_server_config(None, {"host": "0.0.0.0"}, bound)
    assert str(config.inference_address) == "http://0.0.0.0:9001"
    assert config.provenance["inference_address"] == "environment SAGEMAKER_BIND_TO_PORT"
    stronger = {**bound, "SERVING_INFERENCE_ADDRESS": "http://127.0.0.1:9002"}
    assert load_server_config(None, {}, stronger).inference_address.port == 9002
    with pytest.raises(ConfigError, match="environment SAGEMAKER_BIND_TO_PORT: port=x: expected an integer from 0"):
        load_server_config(None, {}, {"SAGEMAKER_BIND_TO_PORT": "x"})


def test_sizes_of_requests() -> None:
    environ = {"SAGEMAKER_MAX_PAYLOAD_IN_MB": "10"}
    assert load_server_config(None, {}, environ).max_request_size == 10 << 20
    assert load_server_config(None, {}, {**environ, "SAGEMAKER_MAX_REQUEST_SIZE": "77"}).max_request_size == 77
    with pytest.raises(ConfigError, match="environment SAGEMAKER_MAX_PAYLOAD_IN_MB: max_request_size=much: expected"):
        load_server_config(None, {}, {"SAGEMAKER_MAX_PAYLOAD_IN_MB": "much"})


@pytest.mark.parametrize(
    ("value", "models", "access"),
    [("true", "NONE", "open"), ("True", "NONE", "open"), ("false", "ALL", "local"), ("", "ALL", "local")],
)
def test_the_models_of_a_multi_model_endpoint_come_by_requests(value: str, models: str, access: str) -> None:
    config = load_server_config(None, {}, {"SAGEMAKER_MULTI_MODEL": value})
    assert (config.load_models, config.management_access) == (models, access)
    closed = load_server_config(None, {}, {"SAGEMAKER_MULTI_MODEL": value, "SERVING_MANAGEMENT_ACCESS": "local"})
    assert closed.management_access == "local"


def test_health_and_what_has_no_effect() -> None:
    config = load_server_config(None, {}, {"SAGEMAKER_HEALTH_CHECK_OVERRIDE": "true"})
    assert config.health_check_override and config.warnings == ()
    (warning,) = load_server_config(None, {}, {"SAGEMAKER_MODEL_SERVER_VMARGS": "-Xmx2g"}).warnings
    assert warning == "environment SAGEMAKER_MODEL_SERVER_VMARGS has no effect: there is no Java here"


def test_workers_and_timeouts_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "model.py").touch()
    environ = {
        "SAGEMAKER_NUM_MODEL_WORKERS": "3",
        "SAGEMAKER_STARTUP_TIMEOUT": "600",
        "SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS": "7",
        "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT": "text/csv",
    }
    config = load_model_config(ModelSpec(name="m", url=str(tmp_path)), load_server_config(None, {}, environ), environ)
    assert config.serving.min_workers == 3
    assert (config.option.model_loading_timeout, config.option.predict_timeout) == (600, 7)
    assert config.properties["default_accept"] == "text/csv"
    (tmp_path / "serving.properties").write_text("minWorkers=2\n")
    config = load_model_config(ModelSpec(name="m", url=str(tmp_path)), load_server_config(None, {}, environ), environ)
    assert config.serving.min_workers == 2


@pytest.mark.parametrize(
    ("said", "level"), [("20", "info"), ("10", "debug"), ("50", "error"), ("0", "debug"), ("WARNING", "warning")]
)
def test_levels_are_names_or_numbers(said: str, level: str) -> None:
    assert log_level({"SAGEMAKER_CONTAINER_LOG_LEVEL": said}) == level
    assert log_level({}) is None
    with pytest.raises(ValueError, match="SAGEMAKER_CONTAINER_LOG_LEVEL=loud: expected one of debug, info"):
        log_level({"SAGEMAKER_CONTAINER_LOG_LEVEL": "loud"})
