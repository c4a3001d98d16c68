"""Workers as processes of this machine.

Runs in the front end's event loop. A worker is spawned in a session of its own with one end of a socket pair; its
whole process group is killed when it ends, so that an engine never outlives its worker.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from typing import Final

from ...config import worker_environment
from ...core.errors import ModelLoadError
from ...ipc.processes import spawn
from .placement import ReplicaSpec, Started

WORKER_MODULE: Final = "djl_python.worker"


class LocalProcesses:
    """A `Placement` that runs each worker as `python -m WORKER_MODULE`, with its model's interpreter."""

    def __init__(self, worker_module: str = WORKER_MODULE) -> None:
        self._worker_module = worker_module

    async def start(self, spec: ReplicaSpec) -> Started:
        """Spawn a worker in its model's directory.

        Raises:
            ModelLoadError: the interpreter, or the directory, can't be used.
        """
        config = spec.config
        executable, directory = config.runtime.executable or sys.executable, config.path
        try:
            process, connection = await spawn(
                self._worker_module,
                log_name=f"{config.label}/{spec.name}",
                executable=executable,
                cwd=directory or None,
                env=worker_environment(config),
                new_session=True,
            )
        except OSError as exc:  # which does not tell which of the two it is about
            at_fault = executable if not directory or os.access(directory, os.X_OK) else directory
            raise ModelLoadError(f"{at_fault}: {exc.strerror or exc}") from exc
        exited = asyncio.create_task(_end_of(process))

        def kill() -> None:
            if not exited.done():  # later, the group's number may be another's
                _kill_group(process.pid)

        return Started(connection, exited, kill, process.pid)


async def _end_of(process: asyncio.subprocess.Process) -> str:
    """How a process ended, once it has, and nothing is left of its group."""
    returncode = await process.wait()
    _kill_group(process.pid)
    await _reap_orphans(process.pid)
    return _how_it_ended(returncode)


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


async def _reap_orphans(group: int) -> None:
    """Reap what is left of a killed process group where this process inherits orphans (process 1 of a container)."""
    for _ in range(50):
        try:
            pid, _status = os.waitpid(-group, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            await asyncio.sleep(0.01)


def _how_it_ended(returncode: int) -> str:
    if returncode >= 0:
        return f"exited with status {returncode}"
    hint = " (out of memory?)" if returncode == -signal.SIGKILL else ""
    try:
        name = signal.Signals(-returncode).name
    except ValueError:  # most real-time signals have none
        name = f"signal {-returncode}"
    return f"was killed by {name}{hint}"
