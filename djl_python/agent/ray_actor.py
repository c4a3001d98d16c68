"""An agent as an actor of Ray's. Runs in the actor's process, on the node that Ray has chosen."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import msgspec

from ..ipc.remote_protocol import Ticket
from .agent import run_agent


class WorkerAgent:
    """The actor's class; `ray_driver` makes the actor."""

    def run(self, ticket: bytes) -> None:
        """Start a worker, and return when it has ended.

        Args:
            ticket: msgpack of a `Ticket`.

        Raises:
            OSError: the front end can't be reached from here.
        """
        run_agent(msgspec.msgpack.decode(ticket, type=Ticket), _node_name())


def _node_name() -> str:
    """The name that the node was started with (`ray start --node-name`), else its host's name."""
    import ray

    context: Any = ray.get_runtime_context()
    nodes: list[dict[str, Any]] = ray.nodes()
    name = next((str(node["NodeName"]) for node in nodes if node["NodeID"] == context.get_node_id()), "")
    try:
        ipaddress.ip_address(name or "::")
    except ValueError:
        return name
    return socket.gethostname()
