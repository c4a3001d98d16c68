"""A placement whose workers are tasks of this process, behind socket pairs as any other's."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress

from djl_python.core.errors import ModelLoadError
from djl_python.ipc.protocol import Status
from djl_python.server.models.placement import ReplicaSpec, Started
from tests.server.fake_worker import FakeWorker


def void(_: object) -> None:
    """Nothing."""


class InProcess:
    """Fake workers. `refusal`: why none can be started, if none can; `started`: what has been started, and for what."""

    def __init__(self) -> None:
        self.refusal = ""
        self.started: list[tuple[ReplicaSpec, Started]] = []

    async def close(self) -> None:
        """Nothing is left of workers that have ended."""

    async def start(self, spec: ReplicaSpec, report: Callable[[Status], None] = void) -> Started:
        """Start a fake worker."""
        if self.refusal:
            raise ModelLoadError(self.refusal)
        ours, theirs = socket.socketpair()
        working = asyncio.create_task(_work(theirs.detach()))
        exited = asyncio.create_task(_end_of(working))
        self.started.append((spec, Started(ours, exited, lambda: void(working.cancel()))))
        return self.started[-1][1]


async def _work(fd: int) -> None:
    worker = FakeWorker()
    try:
        await worker.run(fd)
    finally:
        for task in worker.tasks.values():
            task.cancel()
        worker.channel.close()


async def _end_of(working: asyncio.Task[None]) -> str:
    with suppress(asyncio.CancelledError):
        await asyncio.shield(working)
    return "was cancelled" if working.cancelled() else f"ended in process {os.getpid()}"
