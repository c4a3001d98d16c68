"""Opens the built-in engine. Runs in the engine process, once.

Importing torch and transformers takes seconds on one core. Work for the other cores begins first: memory is taken, and
the native kernels are built where they aren't yet.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...config import has_gpu
from ..devices.free_memory import available_bytes, cpu_cache_bytes
from ..devices.offloading import offloads
from ..interface import ProbeIds, Progress
from ..native.api import PrefaultedRegions, begin_building, begin_prefault, lacking
from ..settings import BuiltInSettings

if TYPE_CHECKING:
    from .paged_batch import PagedRollingBatch


def open_batch(settings: BuiltInSettings, progress: Progress, probe_ids: ProbeIds = lambda: []) -> PagedRollingBatch:
    """Open the built-in engine; `RollingBatch.__init__` and `Engine.takes_probe_ids` describe the arguments."""
    if settings.tensor_parallel_degree == 0 and on_cpu(settings):
        settings = replace(settings, tensor_parallel_degree=1)
    if offloads(settings):
        settings = replace(settings, kernels="torch")
    elif settings.device_map:
        settings = replace(settings, device_map="")
    prefaulted = _begin(settings) if _will_run_natively(settings) else None
    from .paged_batch import PagedRollingBatch

    return PagedRollingBatch(settings, progress, prefaulted, probe_ids)


def on_cpu(settings: BuiltInSettings) -> bool:
    """Whether the model computes on the CPU."""
    return settings.device == "cpu" or (settings.device == "auto" and not has_gpu())


def _will_run_natively(settings: BuiltInSettings) -> bool:
    """Whether the model will run on the native kernels, as far as can be told without torch."""
    if settings.ranks != 1 or settings.kernels == "torch" or settings.image_example is not None or settings.enable_lora:
        return False
    return on_cpu(settings) and not lacking()


def _begin(settings: BuiltInSettings) -> PrefaultedRegions | None:
    begin_building()
    return begin_prefault(Path(settings.model_path), settings.quantize, cpu_cache_bytes(settings), available_bytes())
