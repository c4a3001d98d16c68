"""How much memory is free on this machine, or in this container. Runs in the engine process; needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import psutil

from ..settings import BuiltInSettings

_CONTAINER: Final = Path("/sys/fs/cgroup")


class _Files(NamedTuple):
    """A cgroup version's files with a container's limit and usage of memory.

    Attributes:
        limit, used, statistics: files below /sys/fs/cgroup.
        droppable: the name in `statistics` of memory that the operating system can take back.
    """

    limit: str
    used: str
    statistics: str
    droppable: str


_VERSION_2: Final = _Files("memory.max", "memory.current", "memory.stat", "inactive_file")
_VERSION_1: Final = _Files(
    "memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"
)
# Without a setting, the cache may take this share of the memory that is free once the weights are loaded. It is
# reserved, not taken: the operating system gives a block's memory when the block is first used.
_CPU_CACHE_SHARE: Final = 0.4
# The caches of a model's workers together: each one reserves before the others have used what they reserved.
_ALL_CACHES_SHARE: Final = 0.8


def cpu_cache_bytes(settings: BuiltInSettings) -> int:
    """Most bytes that the cache may take, given the memory that is free now."""
    return cache_bytes_of(settings.kv_cache_memory_mb, settings.workers, available_bytes())


def cache_bytes_of(kv_cache_memory_mb: int | None, workers: int, free: int) -> int:
    """Most bytes of a worker's cache: by the setting, or its share of the free bytes."""
    if kv_cache_memory_mb is not None:
        return kv_cache_memory_mb * 2**20
    return int(free * min(_CPU_CACHE_SHARE, _ALL_CACHES_SHARE / workers))


def available_bytes(container: Path = _CONTAINER) -> int:
    """Bytes of free memory: the machine's, or what the container (a cgroup) may still take if that is less."""
    available = int(psutil.virtual_memory().available)
    for files in (_VERSION_2, _VERSION_1):
        limit = container / files.limit
        if not limit.exists() or (most := limit.read_text().strip()) == "max":
            continue
        used = int((container / files.used).read_text())
        statistics = dict(line.split() for line in (container / files.statistics).read_text().splitlines())
        # The page cache of files, checkpoints included, counts as used, but is dropped when memory is needed.
        available = min(available, max(0, int(most) - used + int(statistics[files.droppable])))
    return available
