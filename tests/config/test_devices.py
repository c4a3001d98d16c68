"""Names of devices."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import pytest

from djl_python.config import (
    ModelConfig,
    Options,
    ServingSettings,
    device_id,
    devices_each,
    devices_of,
    has_gpu,
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


def test_a_gpu_that_is_hidden_is_none(tmp_path: Path) -> None:
    driver = tmp_path / "nvidiactl"
    assert not has_gpu({}, [driver])
    driver.touch()
    assert has_gpu({}, [driver])
    assert has_gpu({"CUDA_VISIBLE_DEVICES": "1"}, [driver])
    assert not has_gpu({"CUDA_VISIBLE_DEVICES": ""}, [driver])
    assert not has_gpu({"CUDA_VISIBLE_DEVICES": "-1"}, [driver])


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
