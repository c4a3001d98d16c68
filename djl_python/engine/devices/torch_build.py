"""The installed build of torch, and the GPUs that it sees. Runs in `djl-serving doctor`."""

from __future__ import annotations

import warnings

import msgspec
import torch

from .device import MULTIPLIES_BF16


class Gpu(msgspec.Struct, frozen=True):
    """A GPU: its memory in bytes, its compute capability as "8.0", and whether it multiplies bf16 numbers itself."""

    name: str
    capability: str
    free_bytes: int
    total_bytes: int
    has_bf16: bool


class TorchBuild(msgspec.Struct, frozen=True):
    """The torch of this interpreter.

    `platform` is "CPUs", "CUDA 12.8" or "ROCm 6.2"; `threads` are those of its operations on a CPU; `problem` is
    torch's reason for seeing no GPUs, if it gives one.
    """

    version: str
    platform: str
    threads: int
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""


def torch_build() -> TorchBuild:
    """Look at torch, and at each GPU."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return TorchBuild(
        version=torch.__version__,
        platform=_platform(),
        threads=torch.get_num_threads(),
        gpus=tuple(map(_gpu, range(count))),
        problem="; ".join(str(warning.message).splitlines()[0] for warning in warned),
    )


def _platform() -> str:
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs"


def _gpu(number: int) -> Gpu:
    capability = torch.cuda.get_device_capability(number)
    free, total = torch.cuda.mem_get_info(number)
    return Gpu(
        name=torch.cuda.get_device_name(number),
        capability=".".join(map(str, capability)),
        free_bytes=free,
        total_bytes=total,
        has_bf16=capability >= MULTIPLIES_BF16,
    )
