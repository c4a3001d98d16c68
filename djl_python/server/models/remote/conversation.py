"""The front end's side of its conversation with one agent.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

from ....core import logs
from ....core.errors import MachineLoadError, ModelLoadError, load_error
from ....ipc.channel import Channel
from ....ipc.protocol import AnyMessage, Status
from ....ipc.remote_protocol import AgentHello, Ended, EndWorker, FileRequest, Launch, Listing, Output, Spawned
from .listings import part

log = logging.getLogger(__name__)

#: How long an agent that has been told to kill its worker may take until it counts as lost.
KILL_TIMEOUT_S: Final = 5.0
_LAST_WORDS_S: Final = 0.5


class Conversation:
    """A conversation, from an agent's connection to its end.

    Attributes:
        hello: the agent's first message.
        spawned: whether the worker runs.
        failed: why the worker has not been started, as the agent says, or because that has gone.
        exited: how the worker ended, see `Started`.
        lost: whether the agent has gone without a word: with its machine, for all that is known.
        node: the name of the agent's machine.
    """

    def __init__(self, report: Callable[[Status], None]) -> None:
        loop = asyncio.get_running_loop()
        self.hello: asyncio.Future[AgentHello] = loop.create_future()
        self.spawned: asyncio.Future[None] = loop.create_future()
        self.failed: asyncio.Future[ModelLoadError] = loop.create_future()
        self.exited: asyncio.Future[str] = loop.create_future()
        self.lost = False
        self.node = ""
        self._loop = loop
        self._report = report
        self._listings: list[Listing] = []
        self._reading: set[asyncio.Task[None]] = set()
        self._killed = False
        self._channel = Channel(self._on_messages, self._on_closed)

    async def begin(self, sock: socket.socket) -> None:
        """Take over the agent's connection."""
        await self._channel.attach(sock)

    def launch(self, launch: Launch) -> None:
        """Have the agent start a worker."""
        self._listings = launch.listings
        self._channel.send(launch)

    def kill(self) -> None:
        """Have the worker killed. An agent that does not answer in time counts as lost."""
        if self.exited.done() or self._killed:
            return
        self._killed = True
        self._channel.send(EndWorker())
        self._channel.flush()
        self._loop.call_later(KILL_TIMEOUT_S, self.close)

    def lose(self, why: str) -> None:
        """The agent has ended, by what its launcher knows; what it has said before may still be on its way."""
        if not self.exited.done():
            self._loop.call_later(_LAST_WORDS_S, self._lose, why)

    def _lose(self, why: str) -> None:
        if not self.exited.done():
            self.lost = not self._killed
            self._over(f"was lost with its node {self.node}" + (f" ({why})" if why else ""))
            self._channel.close()

    def close(self) -> None:
        """End the conversation, and with it the agent and its worker."""
        self._channel.close()
        self._over("was killed" if self._killed else "was given up")

    def _on_messages(self, messages: list[AnyMessage]) -> None:
        for message in messages:
            match message:
                case AgentHello() if not self.hello.done():
                    self.node = message.node
                    self.hello.set_result(message)
                case Spawned() if not self.spawned.done():
                    self.spawned.set_result(None)
                case FileRequest():
                    task = self._loop.create_task(self._send_part(message))
                    self._reading.add(task)
                    task.add_done_callback(self._reading.discard)
                case Output():
                    logs.pass_on(message.text)
                case Ended():
                    self._over(f"{message.how} on {self.node}")
                case Status(state="failed") if not self.failed.done():
                    why = f"{self.node}: {message.detail}"
                    self.failed.set_result(load_error(why, no_memory=message.no_memory, lacking=message.lacking))
                case Status():
                    self._report(message)
                case _:
                    log.error("a %s from an agent is not for the front end", type(message).__name__)

    async def _send_part(self, request: FileRequest) -> None:
        self._channel.send(await asyncio.to_thread(part, self._listings, request))

    def _on_closed(self) -> None:
        if not self.exited.done() and not self._killed:
            self.lost = True
        self._over("was killed" if self._killed else f"was lost with its node {self.node}".rstrip())

    def _over(self, how: str) -> None:
        if not self.exited.done():
            self.exited.set_result(how)
            if not (self.spawned.done() or self.failed.done()):
                self.failed.set_result(MachineLoadError(f"the agent {how}"))
