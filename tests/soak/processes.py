"""The server's processes as the soak sees them: found by what they run, ended, stopped, limited, and measured.

Runs in the soak's process. Only processes below the server that the soak started are ever touched.
"""

from __future__ import annotations

import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

SHARED_MEMORY: Final = Path("/dev/shm")
_MIB: Final = 1 << 20


def named(server: psutil.Process, model: str, role: str = "") -> psutil.Process | None:
    """A worker of a model below `server`, or with the role `/engine` an engine, by its name in the logs.

    That has the model, perhaps with a generation, and the worker's number, which changes when a model is reloaded.
    """
    name = re.compile(rf"--log-name={re.escape(model)}[^/]*/\d+{role}")
    for process in server.children(recursive=True):
        try:
            if any(name.fullmatch(argument) for argument in process.cmdline()):
                return process
        except psutil.NoSuchProcess:
            continue
    return None


@dataclass(frozen=True)
class Sample:
    """What is in use: `memory_mib` is PSS where the system tells it, else RSS, by `front end`, `workers`, `engines`.

    Clients' open connections are no part of `descriptors`: the soak's clients keep more or fewer of them.
    """

    at_s: float
    memory_mib: dict[str, float]
    descriptors: int
    shared_files: int
    temporary_files: int

    @property
    def values(self) -> dict[str, float]:
        """Each quantity by its name, with its unit."""
        memory = {f"{role}, MiB": size for role, size in self.memory_mib.items()}
        others = {
            "descriptors": float(self.descriptors),
            "files in /dev/shm": float(self.shared_files),
            "temporary files": float(self.temporary_files),
        }
        return memory | others


def _role(process: psutil.Process) -> str:
    command = process.cmdline()
    if "djl_python.engine" in command:
        return "engines"
    return "workers" if "djl_python.worker" in command else "front end"


def _memory_mib(process: psutil.Process) -> float:
    full = process.memory_full_info()
    return float(getattr(full, "pss", full.rss)) / _MIB


def _descriptors(process: psutil.Process) -> int:
    connections = process.net_connections("tcp")
    return int(process.num_fds()) - sum(one.status == psutil.CONN_ESTABLISHED for one in connections)


def sample(server: psutil.Process, temporary: Path) -> Sample:
    """Measure the server's processes; `temporary` is the folder that they use as `TMPDIR`."""
    memory = {"front end": 0.0, "workers": 0.0, "engines": 0.0}
    descriptors = 0
    for process in [server, *server.children(recursive=True)]:
        try:
            role, size, opened = _role(process), _memory_mib(process), _descriptors(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        memory[role] += size
        descriptors += opened
    return Sample(
        time.monotonic(),
        memory,
        descriptors,
        sum(1 for _ in SHARED_MEMORY.iterdir()) if SHARED_MEMORY.is_dir() else 0,
        sum(1 for _ in temporary.rglob("*")),
    )


@dataclass(frozen=True)
class Growth:
    """How a quantity grew after the warm-up: medians of the first and the last quarter, and the slope per hour."""

    name: str
    first: float
    last: float
    slope_per_hour: float
    is_flat: bool


#: What may be used more after a run than after the warm-up, as a share and as a number; the larger counts. What other
#: programs do in /dev/shm is seen too.
_SHARE: Final = 0.15
_LEAST: Final = {"MiB": 48.0, "": 12.0}
_FEWEST_SAMPLES: Final = 4


def growth(samples: Sequence[Sample]) -> list[Growth]:
    """The growth of each quantity; nothing can be said of fewer than four samples."""
    if len(samples) < _FEWEST_SAMPLES:
        return []
    quarter = max(len(samples) // 4, 1)
    hours = [(one.at_s - samples[0].at_s) / 3600 for one in samples]
    growths = []
    for name in samples[0].values:
        values = [one.values[name] for one in samples]
        first, last = statistics.median(values[:quarter]), statistics.median(values[-quarter:])
        slope = statistics.linear_regression(hours, values).slope
        allowed = max(first * _SHARE, _LEAST["MiB" if name.endswith("MiB") else ""])
        growths.append(Growth(name, first, last, slope, last - first <= allowed))
    return growths


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for the server's temporary files and batches."""
    return tempfile.TemporaryDirectory(prefix="djl-soak-")
