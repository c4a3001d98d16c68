"""Workers as processes of this machine.

Runs in the front end's event loop. A worker is spawned in a session of its own with one end of a socket pair; its
whole process group is killed when it ends, so that an engine never outlives its worker.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ...config import worker_environment
from ...core.errors import ModelLoadError, lacks_machine, lacks_memory, load_error
from ...ipc.joining import Endpoint
from ...ipc.process_state import halted
from ...ipc.processes import spawn_on
from ...ipc.protocol import Status
from .placement import ReplicaSpec, Started

WORKER_MODULE: Final = "djl_python.worker"


@dataclass(frozen=True)
class WorkerProcess:
    """A worker's process; the attributes are those of `Started`."""

    exited: asyncio.Future[str]
    kill: Callable[[], None]
    pid: int
    halted: Callable[[], bool]


class LocalProcesses:
    """A `Placement` that runs each worker as `python -m WORKER_MODULE`, with its model's interpreter.

    Args:
        output: a descriptor that workers log and print to; None: this process's stdout and stderr.
    """

    def __init__(self, worker_module: str = WORKER_MODULE, *, output: int | None = None) -> None:
        self._worker_module = worker_module
        self._output = output

    @classmethod
    def made(cls, endpoint: Endpoint) -> LocalProcesses:
        """The placement; there are no other machines to reach."""
        return cls()

    async def start(self, spec: ReplicaSpec, report: Callable[[Status], None] = lambda _: None) -> Started:
        """Spawn a worker in its model's directory, at the other end of a socket pair.

        Raises:
            ModelLoadError: as `start_on`.
        """
        try:
            ours, theirs = socket.socketpair()
        except OSError as exc:
            raise _no_process(exc) from exc
        try:
            worker = await self.start_on(spec, theirs)
        except BaseException:
            ours.close()
            raise
        return Started(ours, worker.exited, worker.kill, worker.pid, worker.halted)

    async def start_on(self, spec: ReplicaSpec, theirs: socket.socket) -> WorkerProcess:
        """Spawn a worker in its model's directory. The connected socket is the worker's from then on.

        Raises:
            ModelLoadError: the interpreter, or the directory, can't be used.
            MachineLoadError, MemoryLoadError: the machine has no descriptor, process or memory left.
        """
        config = spec.config
        executable, directory = config.runtime.executable or sys.executable, config.path
        try:
            process = await spawn_on(
                theirs,
                self._worker_module,
                log_name=f"{config.label}/{spec.name}",
                executable=executable,
                cwd=directory or None,
                env=worker_environment(config),
                new_session=True,
                output=self._output,
            )
        except OSError as exc:
            if lacks_memory(exc) or lacks_machine(exc):
                raise _no_process(exc) from exc
            # The error does not tell which of the two it is about.
            at_fault = executable if not directory or os.access(directory, os.X_OK) else directory
            raise load_error(f"{at_fault}: {exc.strerror or exc}") from exc
        exited = asyncio.create_task(_end_of(process))

        def kill() -> None:
            if not exited.done():  # later, the group's number may be another's
                _kill_group(process.pid)

        return WorkerProcess(exited, kill, process.pid, functools.partial(halted, process.pid))

    async def close(self) -> None:
        """Nothing is left once the workers have ended."""


def _no_process(error: OSError) -> ModelLoadError:
    why = f"no process can be started: {error.strerror}"
    return load_error(why, no_memory=lacks_memory(error), lacking=True)


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
