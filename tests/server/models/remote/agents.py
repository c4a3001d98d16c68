"""A launcher that spawns agents on this machine, each a process as on any other."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable

import msgspec

from djl_python.ipc.remote_protocol import Ticket
from djl_python.server.models.placement import ReplicaSpec
from tests.server.harness import FAKE_MODULE, ROOT


class SpawnedAgent:
    """One of them; it leads a process group of its own, which is its node."""

    def __init__(self, node: str, ticket: Ticket, worker: str) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.node = node
        self.process: asyncio.subprocess.Process | None = None
        self._running = asyncio.create_task(self._run(ticket, worker))

    async def _run(self, ticket: Ticket, worker: str) -> None:
        command = (sys.executable, "-P", "-m", "djl_python.agent", "--node", self.node, "--worker", worker)
        self.process = process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True
        )
        await process.communicate(msgspec.msgpack.encode(ticket))
        self.ended.set_result("" if process.returncode == 0 else f"exited with status {process.returncode}")

    def kill(self) -> None:
        """As the launcher of a cluster does."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()


class SpawnedAgents:
    """A `Launcher`. `agents`: those that were launched; `may_come`: when the next ones are."""

    def __init__(self, worker: str = FAKE_MODULE, before: Callable[[], None] = lambda: None) -> None:
        self.agents: list[SpawnedAgent] = []
        self._worker = worker
        self._before = before

    async def reach(self, spec: ReplicaSpec) -> str:
        """This machine is near."""
        return "127.0.0.1"

    def launch(self, spec: ReplicaSpec, ticket: Ticket) -> SpawnedAgent:
        """Spawn an agent."""
        self._before()
        self.agents.append(SpawnedAgent(f"node{len(self.agents)}", ticket, self._worker))
        return self.agents[-1]

    def asked_for(self, spec: ReplicaSpec) -> str:
        """What a node would have to have."""
        return "CPU 1"

    async def close(self) -> None:
        """Wait for their ends."""
        await asyncio.gather(*(agent.ended for agent in self.agents))

    def lose_node(self, number: int) -> None:
        """An agent's machine is switched off, with all that runs there."""
        process = self.agents[number].process
        assert process is not None
        for pid in (process.pid, *_children(process.pid)):  # the agent first: it would report how its worker ended
            os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children(recursive=True)]
