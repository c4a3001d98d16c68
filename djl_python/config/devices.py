"""Names of devices: DJL's, torch's, and those that handlers get. Runs in every process; needs no torch."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ..core.errors import ConfigError
from .model import ModelConfig

#: Device files that the drivers of NVIDIA's and AMD's GPUs create.
_DRIVERS: Final = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
#: Where AMD's driver lists what computes: processors, whose gpu_id is 0, and GPUs.
_AMD_NODES: Final = Path("/sys/class/kfd/kfd/topology/nodes")
#: `option.placement` of workers on this machine.
LOCAL: Final = "local"
_VISIBLE: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


#: In `ModelConfig.devices`: whatever device there is.
ANY_DEVICE: Final = "auto"


def devices_here(named: str) -> str:
    """`load_on_devices` adapted to this machine: without a GPU, each named GPU becomes any device."""
    names = [name for name in named.split(";") if name]
    if named == "*" or has_gpu():
        return named
    return ";".join(name if name in ("-1", "cpu") else ANY_DEVICE for name in names)


def _torch_device(name: str) -> str:
    """Convert DJL's device name to torch's; DJL's are -1, cpu, gpu0 and 0."""
    if name in ("-1", "cpu"):
        return "cpu"
    if name == ANY_DEVICE:
        return name
    return f"cuda:{name.removeprefix('gpu').removeprefix('cuda').removeprefix(':')}"


def devices_of(config: ModelConfig) -> list[str]:
    """torch's names of the devices of a model's workers; `bounds_on` says how many workers each gets.

    With `*` (all GPUs), each worker gets as many GPUs as share the model, and is named by the first of them. Workers on
    other machines use the devices that they have reserved there.
    """
    if is_remote(config):
        return [config.option.device]
    named = config.devices if config.devices not in ("", "*") else config.serving.load_on_devices
    if named != "*":
        return [_torch_device(name) for name in named.split(";") if name]
    gpus, each = gpu_count(), devices_sharing(config)
    if config.option.device != "auto" or each == 0 or gpus < 2 * each:
        return [config.option.device]
    return [f"cuda:{first}" for first in range(0, gpus - each + 1, each)]


def is_remote(config: ModelConfig) -> bool:
    """Whether a model's workers run on other machines."""
    return config.option.placement != LOCAL


def devices_sharing(config: ModelConfig) -> int:
    """How many devices a worker has by its settings; 0: as many as there are."""
    degree = config.option.tensor_parallel_degree or 1
    return 0 if degree == "max" else degree * config.option.pipeline_parallel_degree


def bounds_on(config: ModelConfig, device: str) -> tuple[int, int]:
    """How many workers a model has for each entry of a device, by torch's name: at least, and at most."""
    serving = config.serving
    gpu = bool(config.option.num_gpus) if is_remote(config) else has_gpu()
    if device_id(device, gpu=gpu) == "-1":
        least, most = serving.cpu_min_workers, serving.cpu_max_workers
    else:
        least, most = serving.gpu_min_workers, serving.gpu_max_workers
    least = least or serving.min_workers
    return least, most or serving.max_workers or least


def bounds_of(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """How many workers a model has on each device, by torch's name: at least, and at most."""
    bounds: dict[str, tuple[int, int]] = {}
    for device in devices_of(config):
        least, most = bounds_on(config, device)
        before = bounds.get(device, (0, 0))
        bounds[device] = before[0] + least, before[1] + most
    return bounds


def workers_of(config: ModelConfig) -> int:
    """How many workers a model has at least."""
    return sum(least for least, _ in bounds_of(config).values())


def workers_sharing(config: ModelConfig) -> int:
    """How many of a model's workers may share the device in this configuration."""
    if is_remote(config):  # what each has reserved is its own
        return 1
    return bounds_of(config)[config.option.device][1]


def devices_each(config: ModelConfig) -> int:
    """How many devices each worker has, beginning with its own: `option.tensor_parallel_degree`; 0: all usable ones.

    It is 1 on a machine without GPUs, unless `option.device` asks for the CPU.

    Raises:
        ConfigError: workers would have devices of others.
    """
    asked = config.option.tensor_parallel_degree or 1
    named = devices_of(config)
    if asked != 1 and set(named) == {"auto"} and not has_gpu():
        return 1
    gpus = sorted({int(name.removeprefix("cuda:")) for name in named if name.startswith("cuda:")})
    if asked == "max":
        return 0 if len(set(named)) == 1 else 1  # they are shared out already
    each = devices_sharing(config)
    if any(second - first < each for first, second in itertools.pairwise(gpus)):
        name = "tensor" if asked > 1 else "pipeline"
        apart = ";".join(f"gpu{gpus[0] + place * each}" for place in range(len(gpus)))
        raise ConfigError(
            f"{config.cite(f'option.{name}_parallel_degree', asked if asked > 1 else each)}: each worker has {each} "
            f"devices from its own on, which overlap; expected load_on_devices={apart}"
        )
    return asked


def stages_each(config: ModelConfig) -> int:
    """How many groups of layers each worker has on devices of their own: `option.pipeline_parallel_degree`.

    It is 1 on a machine without GPUs, unless `option.device` asks for the CPU.
    """
    return 1 if set(devices_of(config)) == {"auto"} and not has_gpu() else config.option.pipeline_parallel_degree


def device_id(device: str, *, gpu: bool) -> str:
    """DJL's `device_id` of a worker: the index of its GPU, or -1 for a CPU.

    Args:
        device: `option.device`, where "auto" is the first GPU if there is a `gpu`.
    """
    kind, _, index = device.partition(":")
    if kind == "cpu" or (kind == "auto" and not gpu):
        return "-1"
    return index or "0"


def gpu_count(environ: Mapping[str, str] = os.environ, devices: Path = Path("/dev"), nodes: Path = _AMD_NODES) -> int:
    """How many GPUs this process may see; 0 also where only their drivers' libraries could count them."""
    listed = len(list(devices.glob("nvidia[0-9]*"))) or sum(
        file.read_text().strip() not in ("", "0") for file in nodes.glob("*/gpu_id")
    )
    visible = next((environ[name] for name in _VISIBLE if name in environ), None)
    return listed if visible is None else min(listed, len(_visible(visible)))


def visible_devices(first: int, count: int, environ: Mapping[str, str] = os.environ) -> str:
    """What CUDA_VISIBLE_DEVICES is to be for a process that has `count` of this one's GPUs, from the `first` on."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(index) for index in range(first + count)] if visible is None else _visible(visible)
    return ",".join(names[first : first + count])


def _visible(value: str) -> list[str]:
    """The devices that such a variable names, up to the first impossible one."""
    names = [name.strip() for name in value.split(",")]
    return list(itertools.takewhile(lambda name: name not in ("", "-1"), names))


def has_gpu(environ: Mapping[str, str] = os.environ, drivers: Sequence[Path] = _DRIVERS) -> bool:
    """Whether there is a GPU that this process may see."""
    if any(environ.get(name) in ("", "-1") for name in _VISIBLE):
        return False
    return any(path.exists() for path in drivers)
