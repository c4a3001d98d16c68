"""Where a model's workers run: what a placement does, and the table of placements.

Runs in the front end's event loop. A placement starts workers and knows how to end them; when to do either is the
business of `replica`. Local processes are one placement; whatever can pass a connected socket on can be another.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, cast

from ...config import LOCAL, ModelConfig
from ...core.errors import ConfigError, ModelLoadError
from ...core.registry import resolve
from ...ipc.joining import Endpoint
from ...ipc.protocol import Status

PLACEMENTS: Final = {
    LOCAL: "djl_python.server.models.local_processes:LocalProcesses",
    "ray": "djl_python.server.models.remote.ray_cluster:RayCluster",
}


@dataclass(frozen=True)
class ReplicaSpec:
    """A worker to be started.

    Attributes:
        name: tells it from the other workers of its model.
        config: the model's, with the worker's own device; the worker gets it in its first message.
    """

    name: str
    config: ModelConfig


@dataclass(frozen=True)
class Started:
    """A worker that has been started.

    Attributes:
        connection: a stream socket to the worker, which speaks `ipc.protocol`, and loads its model when told to. It
            belongs to the caller. When either side closes it, the worker ends.
        exited: done when the worker, and whatever it has started, is gone; says how it ended, as in "exited with status
            1". Never fails, and is not cancelled.
        kill: ends the worker, and whatever it has started, at once; no effect where it has ended.
        pid: its process on this machine, if it has one.
        node: the name of the machine that it runs on; "": this one.
        lost: whether it has ended because its machine was lost, once `exited` is done.
        halted: whether its process is known not to run, and not to go on by itself: it was stopped by a signal.
    """

    connection: socket.socket
    exited: asyncio.Future[str]
    kill: Callable[[], None]
    pid: int | None = None
    halted: Callable[[], bool] = lambda: False
    node: str = ""
    lost: Callable[[], bool] = lambda: False

    async def how_it_ended(self, timeout_s: float) -> str:
        """How the worker ended, if that is known within this time."""
        await asyncio.wait({self.exited}, timeout=timeout_s)
        return self.exited.result() if self.exited.done() else "closed its connection"


class Placement(Protocol):
    """Starts workers."""

    async def start(self, spec: ReplicaSpec, report: Callable[[Status], None] = ...) -> Started:
        """Start a worker. Whoever cancels this leaves none.

        Args:
            report: gets the progress, where starting takes long.

        Raises:
            ModelLoadError: it can't be started; one line says why.
        """
        ...

    async def close(self) -> None:
        """End what the placement has opened for its workers, which have ended."""
        ...


def placement(name: str = LOCAL, endpoint: Endpoint = Endpoint()) -> Placement:  # noqa: B008 - it is immutable
    """The placement of this name in `PLACEMENTS`, or a class that is named as "module:Class".

    The class has a class method `made`, which gets the endpoint: where workers on other machines connect.

    Raises:
        ConfigError: there is none.
    """
    return cast(Placement, resolve(PLACEMENTS, name, "placement").made(endpoint))


class Placements:
    """A `Placement` that starts each worker where its model's `option.placement` says."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._made: dict[str, Placement] = {}

    async def start(self, spec: ReplicaSpec, report: Callable[[Status], None] = lambda _: None) -> Started:
        """Start a worker.

        Raises:
            ModelLoadError: there is no such placement, or it can't start the worker.
        """
        name = spec.config.option.placement
        if name not in self._made:
            try:
                self._made[name] = placement(name, self._endpoint)
            except ConfigError as exc:
                raise ModelLoadError(exc.message) from exc
        return await self._made[name].start(spec, report)

    async def close(self) -> None:
        """Close each placement that has been used."""
        for made in self._made.values():
            await made.close()
