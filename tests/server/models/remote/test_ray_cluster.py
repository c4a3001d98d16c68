import importlib.util
from pathlib import Path
from typing import Any

import pytest

from djl_python.config import ModelConfig, ModelSpec, Options, ServerConfig, bounds_of, devices_of, workers_sharing
from djl_python.config.settings.serving import ServingSettings
from djl_python.core.errors import ConfigError
from djl_python.server.models.placement import ReplicaSpec
from djl_python.server.models.remote.ray_cluster import RayLauncher, cpus_and_gpus, resources_of
from djl_python.sources import load_model_config


def placed(serving: ServingSettings = ServingSettings(), **option: Any) -> ModelConfig:  # noqa: B008
    return ModelConfig(name="m", serving=serving, option=Options(placement="ray", **option))


@pytest.mark.parametrize(
    ("option", "reserved"),
    [
        ({}, (1.0, 0.0)),
        ({"num_cpus": 0.5}, (0.5, 0.0)),
        ({"device": "cuda"}, (1.0, 1.0)),
        ({"device": "cuda", "num_gpus": 0.5}, (1.0, 0.5)),
        ({"tensor_parallel_degree": 4}, (1.0, 4.0)),
        ({"tensor_parallel_degree": 2, "pipeline_parallel_degree": 2}, (1.0, 4.0)),
        ({"tensor_parallel_degree": "max", "num_gpus": 8}, (1.0, 8)),
    ],
)
def test_a_worker_reserves_a_processor_and_a_gpu_for_each_device(
    option: dict[str, Any], reserved: tuple[float, float]
) -> None:
    assert cpus_and_gpus(ReplicaSpec("0", placed(**option))) == reserved


async def test_resources_are_named_as_the_cluster_does() -> None:
    spec = ReplicaSpec("0", placed(num_cpus=2, memory=1 << 30, resources="accelerator_type:H100=0.001, ssd=1"))
    assert resources_of(spec) == {"accelerator_type:H100": 0.001, "ssd": 1.0}
    assert RayLauncher().asked_for(spec) == "CPU 2, memory 1073741824, accelerator_type:H100 0.001, ssd 1"


def test_remote_workers_share_no_device_of_this_machine() -> None:
    config = placed(ServingSettings(min_workers=2, max_workers=5, gpu_max_workers=3), num_gpus=1)
    assert (devices_of(config), bounds_of(config), workers_sharing(config)) == (["auto"], {"auto": (2, 3)}, 1)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_a_server_without_ray_says_what_installs_it(tmp_path: Path) -> None:
    (tmp_path / "model.py").touch()
    (tmp_path / "serving.properties").write_text("option.placement=ray\n")
    with pytest.raises(ConfigError) as raised:
        load_model_config(ModelSpec(name="m", url=str(tmp_path)), ServerConfig(), environ={})
    problem = "option.placement=ray: Ray is not installed here: pip install 'djl-serving[ray]' brings it"
    assert raised.value.message == f"serving.properties:1: {problem}"


@pytest.mark.parametrize("value", ["ssd", "ssd=", "ssd=-1", "=1", "a=1;b=2"])
def test_wrong_resources_are_refused(tmp_path: Path, value: str) -> None:
    (tmp_path / "model.py").touch()
    (tmp_path / "serving.properties").write_text(f"option.resources={value}\n")
    with pytest.raises(ConfigError, match=r"option\.resources"):
        load_model_config(ModelSpec(name="m", url=str(tmp_path)), ServerConfig(), environ={})
