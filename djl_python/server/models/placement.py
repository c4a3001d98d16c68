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

from ...config import ModelConfig
from ...core.registry import resolve

PLACEMENTS: Final = {"local": "djl_python.server.models.local_processes:LocalProcesses"}


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
    """

    connection: socket.socket
    exited: asyncio.Future[str]
    kill: Callable[[], None]
    pid: int | None = None


class Placement(Protocol):
    """Starts workers."""

    async def start(self, spec: ReplicaSpec) -> Started:
        """Start a worker.

        Raises:
            ModelLoadError: it can't be started; one line says why.
        """
        ...


def placement(name: str = "local") -> Placement:
    """The placement of this name in `PLACEMENTS`.

    Raises:
        ConfigError: there is none.
    """
    return cast(Placement, resolve(PLACEMENTS, name, "placement")())
