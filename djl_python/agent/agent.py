"""The agent's side of the conversation with the front end: fetch what a worker needs, start it, report its end.

Runs in the agent's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from .. import __version__
from ..config import ModelConfig
from ..core import logs
from ..core.errors import ServingError, lacks_machine, lacks_memory
from ..ipc import event_loop
from ..ipc.channel import Channel
from ..ipc.joining import join
from ..ipc.protocol import AnyMessage, Status
from ..ipc.remote_protocol import AgentHello, Ended, EndWorker, FilePart, Launch, Output, Spawned, Ticket
from ..server.environments import prepare
from ..server.models.local_processes import WORKER_MODULE, LocalProcesses, WorkerProcess
from ..server.models.placement import ReplicaSpec
from .directories import localized

__all__ = ["WORKER_MODULE", "run_agent"]

_LAST_LINES_S: Final = 1.0
#: Bytes after which a line is sent though it has not ended.
_LONGEST_LINE: Final = 1 << 20
#: How a line of the log begins, see `core.logs`; other lines are printed, or go on with a record.
_RECORD: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ [A-Z]+ |\{")


def run_agent(ticket: Ticket, node: str = "", worker_module: str = WORKER_MODULE) -> None:
    """Run an agent until its worker has ended, or the front end has gone.

    Args:
        node: this machine's name in the front end's log; "": its host name.

    Raises:
        OSError: the front end can't be reached from here, or is not the one that made the ticket.
    """
    event_loop.run(_Agent(node or socket.gethostname(), worker_module).run(ticket))


class _Agent:
    def __init__(self, node: str, worker_module: str) -> None:
        self._node = node
        self._worker_module = worker_module
        self._kill: Callable[[], None] = self._nothing_to_kill
        self._launch: asyncio.Future[Launch]
        self._gone: asyncio.Future[None]
        self._parts: asyncio.Queue[FilePart]
        self._channel: Channel

    async def run(self, ticket: Ticket) -> None:
        """Serve the front end that made the ticket."""
        loop = asyncio.get_running_loop()
        self._launch, self._gone, self._parts = loop.create_future(), loop.create_future(), asyncio.Queue()
        sock = await join(ticket)
        self._channel = Channel(self._on_messages, self._on_closed)
        await self._channel.attach(sock)
        self._channel.send(AgentHello(__version__, self._node))
        await asyncio.wait((self._launch, self._gone), return_when=asyncio.FIRST_COMPLETED)
        if not self._launch.done():
            self._channel.close()
            return
        launching = loop.create_task(self._serve(self._launch.result()))
        await asyncio.wait((launching, self._gone), return_when=asyncio.FIRST_COMPLETED)
        launching.cancel()  # where the front end is gone: its `finally` leaves no worker
        await asyncio.wait((launching,))
        if not self._gone.done():
            await self._channel.drain()
        self._channel.close()
        if not launching.cancelled():
            launching.result()

    async def _serve(self, launch: Launch) -> None:
        """Start the worker, and wait for its end."""
        logs.configure(launch.log_level, sys.stderr, f"agent@{self._node}", launch.log_format)
        reading, writing = os.pipe()
        lines = asyncio.create_task(self._pass_on(reading))
        try:
            worker = await self._started(launch, writing)
        except (ServingError, OSError) as exc:
            why = exc.message if isinstance(exc, ServingError) else str(exc)
            failed = Status("failed", why, no_memory=lacks_memory(exc), lacking=lacks_machine(exc))
            self._channel.send(failed)
            worker = None
        finally:
            os.close(writing)
        if worker is None:
            return
        self._kill = worker.kill
        self._channel.send(Spawned())
        try:
            how = await asyncio.shield(worker.exited)
        finally:
            worker.kill()
            await asyncio.shield(worker.exited)
        # The last lines, up to the traceback of a crash; a process that has left the worker's group may hold the pipe.
        await asyncio.wait((lines,), timeout=_LAST_LINES_S)
        self._channel.send(Ended(how))

    def _nothing_to_kill(self) -> None:
        """The worker has not been started: what starts it is given up."""
        self._on_closed()

    async def _started(self, launch: Launch, output: int) -> WorkerProcess:
        config = msgspec.msgpack.decode(launch.config, type=ModelConfig)
        self._report(Status("loading", "fetching its files"))
        config = await localized(config, launch.listings, self._channel.send, self._parts.get, self._report)
        config = await prepare(config, self._report)
        connection = await join(launch.ticket, may_stall=True)
        spec = ReplicaSpec(f"{launch.name}@{self._node}", config)
        return await LocalProcesses(self._worker_module, output=output).start_on(spec, connection)

    def _report(self, status: Status) -> None:
        self._channel.send(status)

    async def _pass_on(self, descriptor: int) -> None:
        """Send the front end what comes from a pipe, in whole lines. Lines that are no records get the node's name."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_LONGEST_LINE)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
        )
        rest = b""
        try:
            while piece := await reader.read(1 << 16):
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) >= _LONGEST_LINE:
                    lines, rest = [*lines, rest], b""
                self._send_lines(lines)
                await self._channel.room()  # else what a worker prints faster than it can be sent piles up here
            self._send_lines([rest] if rest else [])
        finally:
            transport.close()

    def _send_lines(self, lines: list[bytes]) -> None:
        if lines:
            text = "".join(f"{self._shown(line.decode(errors='backslashreplace'))}\n" for line in lines)
            sys.stderr.write(text)  # which Ray keeps on the node
            self._channel.send(Output(text))

    def _shown(self, line: str) -> str:
        return line if _RECORD.match(line) else f"[{self._node}] {line}"

    # ------------------------------------------------------------------------------------ from the front end

    def _on_messages(self, messages: list[AnyMessage]) -> None:
        for message in messages:
            match message:
                case Launch() if not self._launch.done():
                    self._launch.set_result(message)
                case FilePart():
                    self._parts.put_nowait(message)
                case EndWorker():
                    self._kill()
                case _:
                    logging.getLogger(__name__).error("a %s is not for an agent", type(message).__name__)

    def _on_closed(self) -> None:
        if not self._gone.done():
            self._gone.set_result(None)
