"""How much memory is free on this machine, or in this container. Runs in the engine process; needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psutil

from .rolling_batch import EngineSettings

_CONTAINER: Final = Path("/sys/fs/cgroup")
# Without a setting, the cache may take this share of the memory that is free once the weights are loaded. It is
# reserved, not taken: the operating system gives a block's memory when the block is first used.
CPU_CACHE_SHARE: Final = 0.4


def cpu_cache_bytes(settings: EngineSettings) -> int:
    """Most bytes that the cache may take, given the memory that is free now."""
    if settings.kv_cache_memory_mb is not None:
        return settings.kv_cache_memory_mb * 2**20
    return int(available_bytes() * CPU_CACHE_SHARE)


def available_bytes(container: Path = _CONTAINER) -> int:
    """Bytes of free memory: the machine's, or what the container (a cgroup v2) may still take if that is less."""
    available = int(psutil.virtual_memory().available)
    limit = container / "memory.max"
    if not limit.exists() or (most := limit.read_text().strip()) == "max":
        return available
    used = int((container / "memory.current").read_text())
    statistics = dict(line.split() for line in (container / "memory.stat").read_text().splitlines())
    # The page cache of files, checkpoints included, counts as used, but is dropped when memory is needed.
    return min(available, max(0, int(most) - used + int(statistics["inactive_file"])))
