"""`python -m djl_python.agent.ray_driver --fd N`: this project's driver in a Ray cluster.

A process of its own, the front end's child: Ray takes signals over, prints, and ends a driver whose cluster is gone.
It starts and ends the actors that run agents, and knows nothing else; they end with it. One asyncio loop; Ray's own
threads report the actors' ends.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from concurrent.futures import Future
from typing import Any, Final

import msgspec

from ..ipc import event_loop
from ..ipc.channel import Channel
from ..ipc.processes import begin_child
from ..ipc.protocol import AnyMessage
from ..ipc.remote_protocol import AgentEnded, ConnectRay, KillAgent, RayConnected, StartAgent
from .ray_actor import WorkerAgent

log = logging.getLogger(__name__)

_NAMESPACE: Final = "djl-serving"
_REACH_TIMEOUT_S: Final = 10.0


class _Driver:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        self._channel = Channel(self._on_messages, self._closed.set)
        self._actors: dict[int, Any] = {}
        self._ray: Any = None

    async def run(self, sock: socket.socket) -> None:
        """Serve the front end at the other end of the socket until that closes."""
        await self._channel.attach(sock)
        await self._closed.wait()
        if self._ray is not None:
            self._ray.shutdown()

    def _on_messages(self, messages: list[AnyMessage]) -> None:
        for message in messages:
            match message:
                case ConnectRay():
                    self._channel.send(self._connect(message.address))
                case StartAgent():
                    self._begin(message)
                case KillAgent():
                    self._kill(message.id)
                case _:
                    log.error("a %s is not for the driver of Ray", type(message).__name__)

    def _connect(self, address: str) -> RayConnected:
        """Connect to the cluster; the loop has nothing else to do meanwhile."""
        import ray

        try:
            _reach(address)  # Ray itself tries for minutes
            ray.init(address=address, namespace=_NAMESPACE, logging_level=logging.WARNING, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError, OSError) as exc:
            why = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
            return RayConnected(error=f"{why} (`ray start --head` begins a cluster on its first machine)")
        self._ray = ray
        return RayConnected(ray.util.get_node_ip_address())

    def _begin(self, start: StartAgent) -> None:
        """Start an actor. Ray may refuse it (1.5 GPUs, say), which costs no other one."""
        try:
            self._start(start)
        except (ValueError, TypeError, RuntimeError, OSError, self._ray.exceptions.RayError) as exc:
            self._kill(start.id)
            self._channel.send(AgentEnded(start.id, _one_line(exc)))

    def _start(self, start: StartAgent) -> None:
        # Replicas go to different nodes where there are some: the loss of one costs few requests.
        actor_class = self._ray.remote(WorkerAgent).options(
            num_cpus=start.cpus,
            num_gpus=start.gpus,
            memory=start.memory or None,
            resources=start.resources or None,
            scheduling_strategy="SPREAD",
            max_restarts=0,
            max_task_retries=0,
            name=f"{start.name} {start.ticket.id.hex()[:12]}",  # a name that is taken would be refused
        )
        actor = self._actors[start.id] = actor_class.remote()
        running: Future[None] = actor.run.remote(msgspec.msgpack.encode(start.ticket)).future()
        running.add_done_callback(
            lambda ended: self._loop.call_soon_threadsafe(functools.partial(self._ended, start.id, ended))
        )

    def _ended(self, id: int, ended: Future[None]) -> None:
        error = ended.exception()
        why = "" if error is None else _one_line(error)
        self._kill(id)
        self._channel.send(AgentEnded(id, why))

    def _kill(self, id: int) -> None:
        if (actor := self._actors.pop(id, None)) is not None:
            self._ray.kill(actor, no_restart=True)


def _reach(address: str) -> None:
    """See that somebody listens at an address that names a host and a port. Raises OSError."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _REACH_TIMEOUT_S).close()


def _one_line(error: BaseException) -> str:
    """What an error of Ray's says: of an actor's own error the cause, which comes last, else the first line."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if "RayTaskError" in type(error).__name__ else lines[0]


async def _serve(sock: socket.socket) -> None:
    await _Driver().run(sock)


def main() -> None:
    """Serve until the front end closes the socket."""
    event_loop.run(_serve(begin_child("agent.ray_driver", "The driver of a Ray cluster.")))


if __name__ == "__main__":
    main()
