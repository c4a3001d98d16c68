"""Opens the built-in batch over weights that DeepSpeed places. Runs in the engine process, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ..builtin.opening import on_cpu
from ..builtin.opening import open_batch as open_built_in
from ..interface import ProbeIds, Progress
from ..settings import BuiltInSettings
from .configuration import PartitionPlan

if TYPE_CHECKING:
    from ..builtin.paged_batch import PagedRollingBatch


def open_batch(settings: BuiltInSettings, progress: Progress, probe_ids: ProbeIds = lambda: []) -> PagedRollingBatch:
    """Open the engine; `builtin.opening.open_batch` has the same arguments."""
    degree = settings.tensor_parallel_degree or (1 if on_cpu(settings) else 0)
    if degree == 1 and msgspec.convert(settings.placement_options, PartitionPlan).is_empty:
        return open_built_in(replace(settings, tensor_parallel_degree=1, placement=""), progress, probe_ids)
    batch = open_built_in(replace(settings, tensor_parallel_degree=degree, kernels="torch"), progress, probe_ids)
    batch.info = replace(batch.info, runner="deepspeed")
    batch.description = f"DeepSpeed: {batch.description}"
    return batch
