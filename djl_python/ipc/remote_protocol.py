"""The messages by which a front end has workers started on other machines.

Runs in the front end; in agents, each of which starts one worker on its machine; and in the driver of a Ray cluster,
which starts agents there. `protocol` makes frames of them; `joining` is how an agent's connection comes about.
"""

from __future__ import annotations

import msgspec


class RemoteMessage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of these messages."""


class Ticket(RemoteMessage, frozen=True):
    """Whereby a process on another machine connects to the front end, once. It is a secret.

    Attributes:
        id: says which ticket it is; crosses the network as it is.
        token: proves that it is the ticket's holder; never crosses the network, see `joining`.
        certificate: that of the front end, in PEM; "": the connection is not encrypted.
    """

    host: str
    port: int
    id: bytes
    token: bytes
    certificate: str = ""

    def __repr__(self) -> str:  # what logs and tracebacks show
        return f"Ticket(to {self.host}:{self.port})"


class Listing(RemoteMessage, frozen=True):
    """The files of a directory of the front end's machine.

    Attributes:
        path: the directory, absolute.
        files: (path below the directory, size in bytes, time of the last change in nanoseconds), sorted.
    """

    path: str
    files: list[tuple[str, int, int]]


# ------------------------------------------------------------------------------------ agent -> front end


class AgentHello(RemoteMessage, frozen=True):
    """The first message of an agent: which version of this project it is of, and the name of its machine."""

    version: str
    node: str


class FileRequest(RemoteMessage, frozen=True):
    """Send up to `size` bytes of a file: number `file` of number `listing` in `Launch`."""

    listing: int
    file: int
    offset: int
    size: int


class Spawned(RemoteMessage, frozen=True):
    """The worker's process runs, at the other end of the connection that its ticket was for."""


class Output(RemoteMessage, frozen=True):
    """Lines that the worker and its children have logged or printed; ends with a newline."""

    text: str


class Ended(RemoteMessage, frozen=True):
    """The worker has ended, and nothing is left of it. The agent's last message."""

    how: str


# ------------------------------------------------------------------------------------ front end -> agent


class Launch(RemoteMessage, frozen=True):
    """Start a worker: fetch its files, and have it connect.

    Attributes:
        name: the worker's, within its model.
        config: msgpack of a config.ModelConfig, with the front end's paths.
        ticket: for the worker's connection.
        listings: the local directories that `config` names.
        log_level, log_format: as of `core.logs.configure`.
    """

    name: str
    config: bytes
    ticket: Ticket
    listings: list[Listing]
    log_level: str
    log_format: str


class FilePart(RemoteMessage, frozen=True):
    """The answer to a `FileRequest`; `error` says why the file can't be read, "" if it can."""

    data: bytes
    error: str = ""


class EndWorker(RemoteMessage, frozen=True):
    """Kill the worker, and whatever it has started. `Ended` answers."""


# ------------------------------------------------------------------------------------ front end <-> driver of Ray


class ConnectRay(RemoteMessage, frozen=True):
    """The first message to a driver: connect to the cluster at this address. Answered by `RayConnected`."""

    address: str


class RayConnected(RemoteMessage, frozen=True):
    """The driver is connected; its machine has the address `host` there. Or `error` says why it is not."""

    host: str = ""
    error: str = ""


class StartAgent(RemoteMessage, frozen=True):
    """Start an actor that runs an agent; answered by an `AgentEnded`, once.

    Attributes:
        id: the front end's number of the agent.
        name: shown in Ray's dashboard.
        cpus, gpus, memory: what the actor reserves on its node, memory in bytes; 0: none.
        resources: further ones, by the names that the cluster gives them.
    """

    id: int
    name: str
    ticket: Ticket
    cpus: float
    gpus: float
    memory: int
    resources: dict[str, float]


class KillAgent(RemoteMessage, frozen=True):
    """End an actor, whatever it does."""

    id: int


class AgentEnded(RemoteMessage, frozen=True):
    """An agent's actor has ended, or will not start; `why` is "" after a normal end."""

    id: int
    why: str = ""


AnyRemoteMessage = (
    AgentHello
    | FileRequest
    | Spawned
    | Output
    | Ended
    | Launch
    | FilePart
    | EndWorker
    | ConnectRay
    | RayConnected
    | StartAgent
    | KillAgent
    | AgentEnded
)
