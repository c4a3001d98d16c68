"""What the system says of a process that says nothing itself.

Runs in the front end, about workers; in a worker, about its engine; and in an engine, about its other ranks.
"""

from __future__ import annotations

from typing import Final

import psutil

_HALTED: Final = {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}

#: Why a process ends that is halted.
HALTED: Final = "was stopped by a signal (SIGSTOP, SIGTSTP) or by a debugger"


def halted(pid: int) -> bool:
    """Whether a process does not run, and will not by itself: it was stopped by a signal, or is held by a debugger.

    False where it has gone: its socket tells that.
    """
    try:
        return psutil.Process(pid).status() in _HALTED
    except psutil.NoSuchProcess:
        return False


class CpuClock:
    """The CPU time of a process, by which one that computes is told from one that waits."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._used_s = 0.0

    def advanced(self) -> bool:
        """Whether the process has computed since the last call, or ever, if this is the first one."""
        try:
            times = psutil.Process(self._pid).cpu_times()
        except psutil.NoSuchProcess:
            return False
        before, self._used_s = self._used_s, times.user + times.system
        return self._used_s > before
