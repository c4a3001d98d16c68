"""Names of devices: DJL's, torch's, and what a handler is told. Runs in every process; needs no torch."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ..core.errors import ConfigError
from .model import ModelConfig

#: What the drivers of NVIDIA's and AMD's GPUs bring.
_DRIVERS: Final = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
_VISIBLE: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def _torch_device(name: str) -> str:
    """Convert DJL's device name to torch's; DJL's are -1, cpu, gpu0 and 0."""
    if name in ("-1", "cpu"):
        return "cpu"
    return f"cuda:{name.removeprefix('gpu').removeprefix('cuda').removeprefix(':')}"


def devices_of(config: ModelConfig) -> list[str]:
    """torch's names of the devices that a model's workers are for: each entry gets `minWorkers` of them."""
    named = config.devices if config.devices not in ("", "*") else config.serving.load_on_devices
    return [_torch_device(name) for name in named.split(";") if name] if named != "*" else [config.option.device]


def workers_of(config: ModelConfig) -> int:
    """How many workers a model has."""
    return len(devices_of(config)) * config.serving.min_workers


def workers_sharing(config: ModelConfig) -> int:
    """How many of a model's workers are on the device of the one that has this configuration."""
    return devices_of(config).count(config.option.device) * config.serving.min_workers


def devices_each(config: ModelConfig) -> int:
    """How many devices each worker has, from its own on: `option.tensor_parallel_degree`; 0 for as many as can be used.

    The degree is about GPUs: where there is none, and `option.device` does not ask for the CPU either, it is 1.

    Raises:
        ConfigError: workers would have devices of others.
    """
    asked = config.option.tensor_parallel_degree or 1
    named = devices_of(config)
    if asked != 1 and named == ["auto"] and not has_gpu():
        return 1
    gpus = sorted({int(name.removeprefix("cuda:")) for name in named if name.startswith("cuda:")})
    if asked == "max":
        return 0 if len(set(named)) == 1 else 1  # they are shared out already
    if any(second - first < asked for first, second in itertools.pairwise(gpus)):
        apart = ";".join(f"gpu{gpus[0] + place * asked}" for place in range(len(gpus)))
        raise ConfigError(
            f"option.tensor_parallel_degree={asked}: each worker has {asked} devices from its own on, which overlap; "
            f"expected load_on_devices={apart}"
        )
    return asked


def device_id(device: str, *, gpu: bool) -> str:
    """DJL's `device_id` of a worker: the index of its GPU, or -1 for a CPU.

    Args:
        device: `option.device`, where "auto" is the first GPU if there is a `gpu`.
    """
    kind, _, index = device.partition(":")
    if kind == "cpu" or (kind == "auto" and not gpu):
        return "-1"
    return index or "0"


def has_gpu(environ: Mapping[str, str] = os.environ, drivers: Sequence[Path] = _DRIVERS) -> bool:
    """Whether there is a GPU that this process may see."""
    if any(environ.get(name) in ("", "-1") for name in _VISIBLE):
        return False
    return any(path.exists() for path in drivers)
