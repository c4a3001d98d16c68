"""CPU time of a server's processes, by role. Runs in the process that measures; Linux and macOS."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import psutil

#: Module in the command line of our processes -> the process's role.
_ROLES: Final = {"djl_python.worker": "worker", "djl_python.engine": "engine"}


def cpu_seconds(pid: int) -> dict[str, float]:
    """CPU seconds so far of a process and all its descendants: `server` for the process itself, and for each role.

    Children that ended are not counted. Raises psutil.NoSuchProcess if the process has ended.
    """
    root = psutil.Process(pid)
    total: dict[str, float] = defaultdict(float)
    for process in (root, *root.children(recursive=True)):
        try:
            times = process.cpu_times()
            role = "server" if process is root else role_of(process.cmdline())
        except psutil.NoSuchProcess:  # a child that ended just now
            continue
        total[role] += times.user + times.system
    return dict(total)


def role_of(command: list[str]) -> str:
    """The role of a child with this command line."""
    return next((role for module, role in _ROLES.items() if module in command), "other")
