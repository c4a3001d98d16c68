"""Workers on the nodes of a Ray cluster: asks the driver of each cluster for actors that run agents.

Runs in the front end's event loop, which never loads Ray: a driver whose cluster is gone is ended by Ray.
"""

from __future__ import annotations

import asyncio
import itertools
import logging

from ....config import devices_sharing
from ....core.errors import MachineLoadError
from ....core.names import values_by_name
from ....ipc.channel import Channel
from ....ipc.joining import Endpoint
from ....ipc.processes import spawn
from ....ipc.protocol import AnyMessage
from ....ipc.remote_protocol import AgentEnded, ConnectRay, KillAgent, RayConnected, StartAgent, Ticket
from ..placement import ReplicaSpec
from .workers import RemoteWorkers

log = logging.getLogger(__name__)

_DRIVER_MODULE = "djl_python.agent.ray_driver"
#: How long a driver may take to end its actors and leave the cluster.
_CLOSE_TIMEOUT_S = 10.0


class RayCluster(RemoteWorkers):
    """The placement `ray`; models name their cluster with `option.ray_address`."""

    @classmethod
    def made(cls, endpoint: Endpoint) -> RayCluster:
        """The placement; workers connect to this endpoint."""
        return cls(RayLauncher(), endpoint)


class RayAgent:
    """An agent that the driver has been asked for."""

    def __init__(self, id: int, driver: _Driver) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._id = id
        self._driver = driver

    def kill(self) -> None:
        """End its actor."""
        self._driver.send(KillAgent(self._id))

    def over(self, why: str) -> None:
        """It has ended."""
        if not self.ended.done():
            self.ended.set_result(why)


class RayLauncher:
    """A `Launcher` of actors, with a driver for each cluster."""

    def __init__(self) -> None:
        self._drivers: dict[str, _Driver] = {}
        self._ids = itertools.count(1)

    async def reach(self, spec: ReplicaSpec) -> str:
        """Connect to the model's cluster.

        Raises:
            MachineLoadError: there is none at its address, or it can't be reached.
        """
        address = spec.config.option.ray_address
        driver = self._drivers.get(address)
        if driver is None or driver.gone:
            driver = self._drivers[address] = _Driver(address)
            driver.begin()
        return await driver.connected()

    def launch(self, spec: ReplicaSpec, ticket: Ticket) -> RayAgent:
        """Ask for an actor."""
        option, driver = spec.config.option, self._drivers[spec.config.option.ray_address]
        id = next(self._ids)
        agent = RayAgent(id, driver)
        cpus, gpus = cpus_and_gpus(spec)
        name = f"djl-serving {spec.config.label}/{spec.name}"
        start = StartAgent(id, name, ticket, cpus, gpus, option.memory or 0, resources_of(spec))
        driver.start(id, agent, start)
        return agent

    def asked_for(self, spec: ReplicaSpec) -> str:
        """The resources that the actor reserves, as Ray names them."""
        cpus, gpus = cpus_and_gpus(spec)
        option = spec.config.option
        amounts = {"CPU": cpus, "GPU": gpus, "memory": option.memory or 0, **resources_of(spec)}
        return ", ".join(f"{name} {_shown(amount)}" for name, amount in amounts.items() if amount)

    async def close(self) -> None:
        """Leave every cluster."""
        await asyncio.gather(*(driver.close() for driver in self._drivers.values()))


def cpus_and_gpus(spec: ReplicaSpec) -> tuple[float, float]:
    """The processors and GPUs that a worker reserves: of these one for each device that shares the model."""
    option = spec.config.option
    gpus = option.num_gpus
    if gpus is None:
        shared = devices_sharing(spec.config) or option.pipeline_parallel_degree
        gpus = float(shared) if option.device.startswith("cuda") or shared > 1 else 0.0
    return option.num_cpus, gpus


def _shown(amount: float) -> str:
    return str(int(amount)) if amount == int(amount) else str(amount)


def resources_of(spec: ReplicaSpec) -> dict[str, float]:
    """What else a worker reserves, by name."""
    return values_by_name(spec.config.option.resources, float, "NAME=AMOUNT with commas between them")


class _Driver:
    """The process that is connected to a cluster, and the agents that it runs there."""

    def __init__(self, address: str) -> None:
        self.gone = False
        self._address = address
        self._agents: dict[int, RayAgent] = {}
        self._connected: asyncio.Future[RayConnected] = asyncio.get_running_loop().create_future()
        self._starting: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._channel = Channel(self._on_messages, self._on_closed)

    def begin(self) -> None:
        """Start the process."""
        self._starting = asyncio.create_task(self._start())

    async def connected(self) -> str:
        """This machine's address, once the driver is connected. Raises MachineLoadError if it can't be."""
        answer = await asyncio.shield(self._connected)
        if answer.error:
            raise MachineLoadError(f"option.ray_address={self._address}: {answer.error}")
        return answer.host

    def start(self, id: int, agent: RayAgent, start: StartAgent) -> None:
        """Have it start an agent."""
        self._agents[id] = agent
        if self.gone:
            agent.over("the driver of the Ray cluster has ended")
        self.send(start)

    def send(self, message: AnyMessage) -> None:
        """Send it a message; dropped once it is gone."""
        self._channel.send(message)

    async def close(self) -> None:
        """Have it leave the cluster; its actors end with it."""
        if self._starting is not None:
            await asyncio.wait((self._starting,))
        self._channel.close()
        if self._process is not None:
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    async def _start(self) -> None:
        try:
            self._process, sock = await spawn(_DRIVER_MODULE, log_name="ray")
        except OSError as exc:
            self._fail(f"no process can be started: {exc.strerror}")
            return
        await self._channel.attach(sock)
        self._channel.send(ConnectRay(self._address))

    def _on_messages(self, messages: list[AnyMessage]) -> None:
        for message in messages:
            match message:
                case RayConnected() if not self._connected.done():
                    self._connected.set_result(message)
                    if message.error:
                        self._channel.close()
                case AgentEnded():
                    if (agent := self._agents.pop(message.id, None)) is not None:
                        agent.over(message.why)
                case _:
                    log.error("a %s from the driver of Ray is not expected", type(message).__name__)

    def _on_closed(self) -> None:
        self._fail("the driver of the Ray cluster has ended")

    def _fail(self, why: str) -> None:
        self.gone = True
        if not self._connected.done():
            self._connected.set_result(RayConnected(error=why))
        for agent in self._agents.values():
            agent.over(why)
        self._agents.clear()
