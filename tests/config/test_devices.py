"""Names of devices."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from djl_python.config import (
    ModelConfig,
    Options,
    ServingSettings,
    bounds_of,
    device_id,
    devices_each,
    devices_of,
    has_gpu,
    visible_devices,
    workers_of,
    workers_sharing,
)
from djl_python.config import devices as devices_module
from djl_python.core.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "expected"),
    [("-1", "cpu"), ("cpu", "cpu"), ("gpu0", "cuda:0"), ("2", "cuda:2"), ("cuda:1", "cuda:1"), ("cuda1", "cuda:1")],
)
def test_djls_names_are_torchs(name: str, expected: str) -> None:
    assert devices_of(ModelConfig(name="m", devices=name)) == [expected]


@pytest.mark.parametrize(
    ("device", "gpu", "expected"),
    [
        *(("cuda:3", True, "3"), ("cuda", True, "0"), ("cpu", True, "-1")),
        *(("auto", True, "0"), ("auto", False, "-1")),
    ],
)
def test_a_worker_has_the_index_of_its_gpu_or_none(device: str, gpu: bool, expected: str) -> None:
    assert device_id(device, gpu=gpu) == expected


def test_each_device_has_as_many_workers() -> None:
    serving = ServingSettings(min_workers=2)
    assert workers_of(ModelConfig(name="m", serving=serving)) == 2
    assert workers_of(ModelConfig(name="m", serving=serving, devices="gpu0;gpu1;gpu2")) == 6


@pytest.mark.parametrize(
    ("settings", "devices", "bounds"),
    [
        ({}, "*", {"cpu": (1, 1)}),
        ({"min_workers": 2}, "gpu0", {"cuda:0": (2, 2)}),
        ({"max_workers": 3}, "gpu0;cpu", {"cuda:0": (1, 3), "cpu": (1, 3)}),
        ({"max_workers": 3}, "gpu0;0", {"cuda:0": (2, 6)}),
        ({"min_workers": 2, "cpu_min_workers": 4}, "gpu0;cpu", {"cuda:0": (2, 2), "cpu": (4, 4)}),
        ({"gpu_min_workers": 2, "gpu_max_workers": 3, "max_workers": 8}, "gpu0;-1", {"cuda:0": (2, 3), "cpu": (1, 8)}),
    ],
)
def test_how_many_workers_a_device_has(
    settings: dict[str, Any], devices: str, bounds: dict[str, tuple[int, int]]
) -> None:
    config = ModelConfig(name="m", serving=ServingSettings(**settings), devices=devices, option=Options(device="cpu"))
    assert bounds_of(config) == bounds
    assert workers_of(config) == sum(least for least, _ in bounds.values())


@pytest.mark.parametrize("gpu", [False, True])
def test_the_device_that_is_chosen_by_itself_is_the_one_that_there_is(
    monkeypatch: pytest.MonkeyPatch, gpu: bool
) -> None:
    monkeypatch.setattr(devices_module, "has_gpu", lambda: gpu)
    config = ModelConfig(name="m", serving=ServingSettings(cpu_max_workers=4, gpu_max_workers=2))
    assert bounds_of(config) == {"auto": (1, 2 if gpu else 4)}


def test_a_gpu_that_is_hidden_is_none(tmp_path: Path) -> None:
    driver = tmp_path / "nvidiactl"
    assert not has_gpu({}, [driver])
    driver.touch()
    assert has_gpu({}, [driver])
    assert has_gpu({"CUDA_VISIBLE_DEVICES": "1"}, [driver])
    assert not has_gpu({"CUDA_VISIBLE_DEVICES": ""}, [driver])
    assert not has_gpu({"CUDA_VISIBLE_DEVICES": "-1"}, [driver])


def test_gpus_are_those_that_the_driver_has_and_the_process_may_see(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    count = devices_module.gpu_count
    assert count({}, tmp_path, nodes) == 3
    assert count({"CUDA_VISIBLE_DEVICES": "2, GPU-8a1"}, tmp_path, nodes) == 2
    assert count({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, tmp_path, nodes) == 1
    for number, gpu_id in enumerate(("0", "51140", "7213")):
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "gpu_id").write_text(f"{gpu_id}\n")
    assert count({}, tmp_path / "none", nodes) == 2


@pytest.mark.parametrize(
    ("option", "gpus", "devices"),
    [
        ({}, 0, ["auto"]),
        ({}, 1, ["auto"]),
        ({}, 3, ["cuda:0", "cuda:1", "cuda:2"]),
        ({"device": "cuda:1"}, 3, ["cuda:1"]),
        ({"device": "cpu"}, 3, ["cpu"]),
        ({"tensor_parallel_degree": 2}, 5, ["cuda:0", "cuda:2"]),
        ({"tensor_parallel_degree": 4}, 4, ["auto"]),
        ({"tensor_parallel_degree": "max"}, 4, ["auto"]),
        ({"tensor_parallel_degree": 2, "pipeline_parallel_degree": 2}, 8, ["cuda:0", "cuda:4"]),
    ],
)
def test_all_gpus_get_workers_each_of_as_many_as_share_the_model(
    option: dict[str, Any], gpus: int, devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices_module, "has_gpu", lambda: gpus > 0)
    monkeypatch.setattr(devices_module, "gpu_count", lambda: gpus)
    config = ModelConfig(name="m", option=Options(**option))
    assert devices_of(config) == devices
    assert workers_of(config) == len(devices)
    degree = option.get("tensor_parallel_degree", 1)
    assert devices_each(config) == (0 if degree == "max" else degree)


def test_a_process_of_some_gpus_is_told_of_those_that_this_one_sees() -> None:
    assert visible_devices(2, 2, {}) == "2,3"
    assert visible_devices(1, 1, {"CUDA_VISIBLE_DEVICES": "5,GPU-8a1"}) == "GPU-8a1"


@pytest.mark.parametrize(
    ("devices", "degree", "expected"),
    [
        *(("*", None, 1), ("*", 4, 4), ("*", "max", 0), ("gpu3", "max", 0), ("gpu0;gpu1", "max", 1)),
        *(("gpu0;gpu1;cpu", 1, 1), ("gpu0;gpu4", 4, 4), ("gpu4;gpu0;gpu0", 4, 4), ("cpu;cpu", 2, 2)),
    ],
)
def test_a_worker_has_devices_from_its_own_on(
    devices: str, degree: int | Literal["max"], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices_module, "has_gpu", lambda: True)
    config = ModelConfig(name="m", devices=devices, option=Options(tensor_parallel_degree=degree))
    assert devices_each(config) == expected


@pytest.mark.parametrize(("device", "degree", "expected"), [("auto", 4, 1), ("auto", "max", 1), ("cpu", 4, 4)])
def test_without_a_gpu_only_whoever_names_the_cpu_has_it_shared(
    device: str, degree: int | Literal["max"], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices_module, "has_gpu", lambda: False)
    assert devices_each(ModelConfig(name="m", option=Options(device=device, tensor_parallel_degree=degree))) == expected


def test_workers_do_not_have_devices_of_others() -> None:
    config = ModelConfig(name="m", devices="gpu1;gpu2;gpu5", option=Options(tensor_parallel_degree=2))
    with pytest.raises(ConfigError, match=re.escape("expected load_on_devices=gpu1;gpu3;gpu5")):
        devices_each(config)


@pytest.mark.parametrize(
    ("devices", "device", "workers", "expected"),
    [("*", "auto", 2, 2), ("gpu0;gpu1", "cuda:1", 2, 2), ("gpu0;0;gpu1", "cuda:0", 1, 2), ("gpu0;cpu", "cpu", 1, 1)],
)
def test_a_worker_knows_how_many_share_its_device(devices: str, device: str, workers: int, expected: int) -> None:
    config = ModelConfig(
        name="m",
        serving=ServingSettings(load_on_devices=devices, min_workers=workers),
        option=Options(device=device),
    )
    assert workers_sharing(config) == expected
    more = msgspec.structs.replace(config.serving, max_workers=5 * workers)
    assert workers_sharing(msgspec.structs.replace(config, serving=more)) == 5 * expected
