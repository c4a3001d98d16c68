"""How many processors this machine or container has. Runs in the front end and the engine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

_CONTAINER: Final = Path("/sys/fs/cgroup")


def available_cpus(container: Path = _CONTAINER) -> int:
    """Processors that this process may run on, or as many as the container's share of time is worth if that is less.

    A container with a limit sees all of the machine's processors: threads on each would use its time up spinning, and
    then all of them would stand still until the next period.
    """
    available = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota, period = _quota(container)
    return available if quota <= 0 else min(available, -(-quota // period))


def _quota(container: Path) -> tuple[int, int]:
    """Microseconds of processors' time in each period of so many; no quota, or -1, without a limit."""
    limit = container / "cpu.max"  # a cgroup v2
    if limit.exists():
        quota, period = limit.read_text().split()
        return (0 if quota == "max" else int(quota)), int(period)
    limit = container / "cpu" / "cpu.cfs_quota_us"  # v1
    if limit.exists():
        return int(limit.read_text()), int(limit.with_name("cpu.cfs_period_us").read_text())
    return 0, 1
