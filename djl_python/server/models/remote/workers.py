"""A placement on other machines: an agent there connects to this front end, and then the worker that it starts.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import msgspec

from .... import __version__
from ....core import logs
from ....core.errors import MachineLoadError, ModelLoadError
from ....ipc.joining import Endpoint, JoiningPort
from ....ipc.protocol import Status
from ....ipc.remote_protocol import Launch, Listing, Ticket
from ..placement import ReplicaSpec, Started
from .conversation import Conversation
from .listings import listings_of

T = TypeVar("T")
F = TypeVar("F")
#: How long an agent that has connected may take for its first message.
_HELLO_TIMEOUT_S: Final = 10.0


class Launched(Protocol):
    """An agent that has been sent for."""

    @property
    def ended(self) -> asyncio.Future[str]:
        """Done when it is gone, or will not come; says why. Never fails."""
        ...

    def kill(self) -> None:
        """End it, whatever it does; no effect where it has ended."""
        ...


class Launcher(Protocol):
    """Brings agents to machines."""

    async def reach(self, spec: ReplicaSpec) -> str:
        """Get ready to launch this worker's agent; returns this machine's address as the others reach it.

        Raises:
            ModelLoadError: the machines can't be reached.
        """
        ...

    def launch(self, spec: ReplicaSpec, ticket: Ticket) -> Launched:
        """Send for an agent, which connects with this ticket."""
        ...

    def asked_for(self, spec: ReplicaSpec) -> str:
        """What a machine must have free for this worker, in words."""
        ...

    async def close(self) -> None:
        """End what is left."""
        ...


class RemoteWorkers:
    """A `Placement` on the machines that a launcher brings agents to."""

    def __init__(self, launcher: Launcher, endpoint: Endpoint) -> None:
        self._launcher = launcher
        self._port = JoiningPort(endpoint)

    async def start(self, spec: ReplicaSpec, report: Callable[[Status], None] = lambda _: None) -> Started:
        """Have an agent start a worker. Whoever cancels this leaves neither.

        Raises:
            ModelLoadError: the machines can't be reached, or the worker does not start there.
            MachineLoadError: no machine has had room for it within `option.model_loading_timeout`.
        """
        asked, within_s = self._launcher.asked_for(spec), spec.config.option.model_loading_timeout
        report(Status("loading", f"waiting for a node with {asked}"))
        listings = await asyncio.to_thread(listings_of, spec.config)
        host = await self._launcher.reach(spec)
        if not self._port.listening:
            try:
                self._port.listen(host)
            except OSError as exc:
                raise ModelLoadError(f"the port for workers can't be opened at {host}: {exc.strerror}") from exc
        ticket, joined = self._port.expect()
        agent = self._launcher.launch(spec, ticket)
        conversation = Conversation(report)
        try:
            try:
                sock = await _either(joined, agent.ended, within_s)
            except TimeoutError:
                raise MachineLoadError(f"no node has had {asked} free for {within_s:g} s") from None
            if isinstance(sock, str):
                raise MachineLoadError(sock or "its agent has ended before it came")
            await conversation.begin(sock)
            connection = await self._started(spec, listings, conversation)
        except BaseException:
            conversation.close()
            agent.kill()
            raise
        conversation.exited.add_done_callback(lambda _: agent.kill())
        agent.ended.add_done_callback(lambda ended: conversation.lose(ended.result()))
        return Started(
            connection, conversation.exited, conversation.kill, node=conversation.node, lost=lambda: conversation.lost
        )

    async def close(self) -> None:
        """Close the port, and what the launcher has left."""
        self._port.close()
        await self._launcher.close()

    async def _started(self, spec: ReplicaSpec, listings: list[Listing], conversation: Conversation) -> socket.socket:
        """The connection of the worker that the agent starts."""
        try:
            hello = await _either(conversation.hello, conversation.failed, _HELLO_TIMEOUT_S)
        except TimeoutError:
            raise MachineLoadError("its agent has connected, and says nothing") from None
        if isinstance(hello, ModelLoadError):
            raise hello
        if hello.version != __version__:
            raise ModelLoadError(
                f"{hello.node} has djl-serving {hello.version}, and the front end {__version__}: they must be the same"
            )
        ticket, joined = self._port.expect(may_stall=True)  # user code may hold a worker's event loop; its agent reads
        config = msgspec.msgpack.encode(spec.config)
        conversation.launch(Launch(spec.name, config, ticket, listings, logs.level(), logs.log_format()))
        # Without a time limit: packages may be installed there, and gigabytes travel. A machine that goes is noticed.
        connection = await _either(joined, conversation.failed)
        if isinstance(connection, ModelLoadError):
            raise connection
        try:
            if (failure := await _either(conversation.spawned, conversation.failed)) is not None:
                raise failure
        except BaseException:
            connection.close()
            raise
        return connection


async def _either(wanted: asyncio.Future[T], instead: asyncio.Future[F], within_s: float | None = None) -> T | F:
    """The result of whichever future is done first. A connection that is not wanted any more is closed.

    Raises:
        TimeoutError: neither is within that time.
    """
    chosen = False
    try:
        await asyncio.wait((wanted, instead), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        if not (wanted.done() or instead.done()):
            raise TimeoutError
        chosen = wanted.done()
        return wanted.result() if chosen else instead.result()
    finally:
        if not wanted.done():
            wanted.cancel()
        elif not chosen and not wanted.cancelled():
            _close(wanted.result())


def _close(result: object) -> None:
    if isinstance(result, socket.socket):
        result.close()
