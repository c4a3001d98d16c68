"""torch, and the GPUs that it sees. Runs in `djl-serving doctor`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Final

from ..config import has_gpu
from .finding import Finding, Level, mib

_SECTION: Final = "torch and GPUs"
_ANOTHER: Final = "pip install torch --index-url URL, with the URL that https://pytorch.org/get-started has for it"


def torch_and_gpus() -> Iterator[Finding]:
    """Which build of torch there is, and whether it suits the machine."""
    try:
        from ..engine.devices.torch_build import torch_build

        build = torch_build()
    except (ImportError, OSError) as exc:  # OSError: one of its libraries can't be loaded
        yield Finding(
            *(_SECTION, "torch", f"can't be imported: {exc}", Level.BROKEN),
            f"install a build of torch for this system: {_ANOTHER}",
        )
        return
    yield Finding(_SECTION, "torch", f"{build.version}, for {build.platform}, {build.threads} threads")
    if has_gpu() and build.platform == "CPUs":
        yield Finding(
            *(_SECTION, "GPU", "there is a driver for GPUs, and this torch is for CPUs alone", Level.HINT),
            f"a build of torch for the GPU: models then run on it. {_ANOTHER}",
        )
    elif has_gpu() and not build.gpus:
        yield Finding(
            *(_SECTION, "GPU", f"torch sees none, though there is a driver: {build.problem or 'no reason given'}"),
            Level.BROKEN,
            "nvidia-smi says whether the driver works; its version must suit the build of torch. "
            "CUDA_VISIBLE_DEVICES=-1 serves on the CPU",
        )
    elif not build.gpus:
        yield Finding(_SECTION, "GPU", "none; models run on the CPU")
    if build.gpus and not _c_compiler():
        yield Finding(
            *(_SECTION, "C compiler", "none, so that steps are not recorded as CUDA graphs", Level.HINT),
            "gcc (apt-get install gcc libc6-dev), with which Triton compiles: several times more tokens per second",
        )
    for number, gpu in enumerate(build.gpus):
        memory = f"{mib(gpu.free_bytes)} of {mib(gpu.total_bytes)} free"
        yield Finding(_SECTION, f"GPU {number}", f"{gpu.name}, capability {gpu.capability}, {memory}")
        if not gpu.has_bf16:
            yield Finding(
                *(_SECTION, f"GPU {number}", "emulates bf16: checkpoints in bf16 are computed in fp16", Level.HINT),
                "a GPU of capability 8.0 or newer computes in bf16",
            )
        if gpu.free_bytes < gpu.total_bytes // 2:
            yield Finding(
                *(_SECTION, f"GPU {number}", f"half of its memory is taken: {memory}", Level.HINT),
                "nvidia-smi says by whom; what is free when a model loads bounds its KV cache",
            )


def _c_compiler() -> str | None:
    """The C compiler that Triton uses unless CC names another."""
    return shutil.which("gcc") or shutil.which("clang")
