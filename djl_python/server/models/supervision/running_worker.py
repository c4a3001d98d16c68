"""One worker, from the start of its process to its end: loads the model, has messages exchanged, and finds its end.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from ....config import ModelConfig
from ....ipc.channel import Channel
from ....ipc.protocol import AnyMessage, Beat, Done, Load, Status, WorkerInfo
from ..adapters.model import ModelAdapters
from ..adapters.worker import WorkerAdapters
from ..placement import Started
from .responsiveness import Responsiveness
from .restarts import Life

log = logging.getLogger(__name__)

#: How long a worker may take to exit after its last message.
EXIT_GRACE_S: Final = 5.0
#: How long after its connection was lost a worker's node may take to say how the worker has ended.
VERDICT_S: Final = 3.0


class Slot(Protocol):
    """The slot that a worker runs in, which hears of it."""

    @property
    def ending(self) -> bool:
        """Whether the worker is to get no calls any more."""
        ...

    def loading(self, status: Status) -> None:
        """It reports loading progress."""
        ...

    def load_ended(self) -> None:
        """It has loaded, or will not: another may load."""
        ...

    def loaded(self, info: WorkerInfo) -> None:
        """It has loaded: what it says of itself."""
        ...

    def enter(self) -> None:
        """It can answer calls from now on."""
        ...

    def responds(self, responds: bool) -> None:
        """Whether a worker that can answer responds; called again and again."""
        ...

    def disconnected(self) -> None:
        """A worker that can answer has lost its connection; `leave` follows when it is known how it has ended."""
        ...

    def leave(self, cause: str, *, lost: bool = False) -> None:
        """It answers no more calls.

        Args:
            lost: whether it has ended for no reason of its own, with its node.
        """
        ...


class RunningWorker:
    """A worker whose process has been started.

    Args:
        name: the worker's, for the log.
        wanted: the adapters that its model should have.
        receive: called with what it sends while it can answer calls.

    Attributes:
        adapters: those that it has.
        channel: the connection to it; None: it has ended.
        no_memory: whether it did not load because there was no memory for it; None: it has not said why.
    """

    def __init__(
        self,
        name: str,
        started: Started,
        config: ModelConfig,
        wanted: ModelAdapters,
        slot: Slot,
        receive: Callable[[list[AnyMessage]], None],
    ) -> None:
        self.adapters = WorkerAdapters(wanted.at_start, self._send)
        self.channel: Channel | None = None
        self.no_memory: bool | None = None
        self._name = name
        self._started: Started | None = started
        self._config = config
        self._wanted = wanted
        self._slot = slot
        self._receive = receive
        self._log_extra = {"model": config.label}
        self._loop = asyncio.get_running_loop()
        self._responsiveness: Responsiveness | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self._answers = False  # whether it can answer calls
        self._lacking = False
        self._killed = ""  # why `_hang_up` killed it, if it did
        self._loaded: asyncio.Future[str] = self._loop.create_future()  # "", or why it did not load
        self._closed = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Its process, if that is on this machine and has not ended."""
        return None if self._started is None else self._started.pid

    @property
    def node(self) -> str:
        """The machine that it runs on; "": this one, or it has ended."""
        return "" if self._started is None else self._started.node

    def kill(self) -> None:
        """Kill it, if it has not ended."""
        if self._started is not None:
            self._started.kill()

    async def wait_closed(self) -> None:
        """Wait until a worker that was told to stop has closed its connection, for as long as it may take."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), EXIT_GRACE_S)

    async def run(self) -> Life:
        """Have it load its model, and wait until it is gone."""
        started = self._started
        assert started is not None
        self.channel = channel = Channel(self._on_messages, self._on_closed)
        await channel.attach(started.connection)
        channel.send(Load(msgspec.msgpack.encode(self._config)))
        self._responsiveness = Responsiveness(channel, started, self._config, self._on_response, self._hang_up)
        try:
            return await self._watch(started)
        finally:
            self._responsiveness.close()
            channel.close()
            self.channel = None
            self._leave("has ended")
            self.kill()
            await started.exited
            self._started = None

    def handle_message(self, message: AnyMessage) -> None:
        """Handle a message about no call: a ready worker that reports failure is about to exit: no more calls."""
        if isinstance(message, Done):
            self.adapters.answered(message)
        elif isinstance(message, Beat) and self._responsiveness is not None:
            self._responsiveness.set_answering(message.answers)
        elif isinstance(message, Status) and message.state == "failed":
            self._leave("gave up")

    # ------------------------------------------------------------------------------------ inside

    def _send(self, message: AnyMessage) -> None:
        if self.channel is not None:
            self.channel.send(message)

    async def _watch(self, started: Started) -> Life:
        exited = started.exited
        timeout_s = self._config.option.model_loading_timeout
        waiting: set[asyncio.Future[Any]] = {exited, self._loaded}
        done, _ = await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self._loaded in done:
            self._slot.load_ended()
        if not done:
            return Life(
                None,
                f"loading took longer than {timeout_s:g} s: raise option.model_loading_timeout "
                "(or MODEL_LOADING_TIMEOUT) if the model needs more time",
            )
        if exited in done and not self._loaded.done():
            await self._last_words()
        if not self._loaded.done() or self._loaded.result():
            how = await started.how_it_ended(EXIT_GRACE_S)
            if self._loaded.done():
                return Life(None, self._loaded.result(), self._lacking)
            return Life(None, f"the worker {self._killed or how} while loading")
        ready_at = self._loop.time()
        closed = asyncio.create_task(self._closed.wait())
        waiting = {exited, closed}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await self._last_words()  # messages that it sent before it ended are still on their way
        closed.cancel()
        if not started.node:
            self._leave("has ended")
        ready_s = self._loop.time() - ready_at
        how = await started.how_it_ended(VERDICT_S if started.node else 1.0)
        self._leave(how if started.node else "has ended", lost=not self._killed and started.lost())
        return Life(ready_s, self._killed or how)

    async def _last_words(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), 0.5)

    def _on_messages(self, messages: list[AnyMessage]) -> None:
        if self._answers:
            if len(messages) == 1 and isinstance(messages[0], Beat):  # no sign that a call progresses
                self.handle_message(messages[0])
            else:
                self._receive(messages)
            return
        if self._slot.ending:  # it gets no calls any more
            return
        for position, message in enumerate(messages):
            if isinstance(message, Done):
                self.adapters.answered(message)
            if not isinstance(message, Status):
                continue
            if message.state == "ready":
                self._slot.loaded(message.info)
                if self.adapters.lacks(self._wanted):
                    self._catching_up = asyncio.create_task(self._catch_up())
                else:
                    self._enter()
                    self._receive(messages[position + 1 :])
                    return
            elif message.state == "failed":
                self.no_memory, self._lacking = message.no_memory, message.no_memory or message.lacking
                self._set_loaded(message.detail or "the worker gave no reason")
            else:
                self._slot.loading(message)

    async def _catch_up(self) -> None:
        """Have it get the adapters that its model got while it loaded; now it may have calls."""
        await self.adapters.become(self._wanted, even_so=True)
        if not (self._slot.ending or self._closed.is_set() or self.channel is None):
            self._enter()

    def _enter(self) -> None:
        assert self._responsiveness is not None
        self._responsiveness.loaded = self._answers = True
        self._slot.enter()
        self._set_loaded("")

    def _leave(self, cause: str, *, lost: bool = False) -> None:
        self._answers = False
        self._slot.leave(cause, lost=lost)

    def _set_loaded(self, outcome: str) -> None:
        if not self._loaded.done():
            self._loaded.set_result(outcome)

    def _on_response(self, responds: bool) -> None:
        if self._answers and not self._closed.is_set():
            self._slot.responds(responds)

    def _hang_up(self, reason: str) -> None:
        """Kill the worker, so that its successor is started."""
        log.error("worker %s %s: killed", self._name, reason, extra=self._log_extra)
        self._killed = reason
        self._leave(reason)
        self.kill()

    def _on_closed(self) -> None:
        self._closed.set()
        self.adapters.lost()
        if self.channel is None:  # what its peer had not read kept the connection open until the worker was gone
            return
        if self.node and self._answers:
            self._slot.disconnected()
        else:
            self._leave("has ended")
