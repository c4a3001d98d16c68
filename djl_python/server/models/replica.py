"""One worker slot of a model: starts a worker in it, and another when that one dies, until the slot is given up.

Runs in the front end's event loop; a `Placement` starts worker processes; `supervision` decides whether a worker
responds, and when the next one starts. A worker loads in its turn until it has been ready once; later restarts do not
wait for a turn, because calls may be waiting.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from ...config import is_remote
from ...core.errors import MachineLoadError, MemoryLoadError, ModelLoadError
from ...ipc.channel import Channel
from ...ipc.protocol import AnyMessage, Beat, Done, Load, Status, Stop, WorkerInfo
from .adapters.model import ModelAdapters
from .adapters.worker import WorkerAdapters
from .placement import Placement, ReplicaSpec, Started
from .pool import Pool
from .supervision.responsiveness import Responsiveness
from .supervision.restarts import Life, Restarts, left_gpu
from .supervision.turns import Turn, begun

log = logging.getLogger(__name__)

#: How long a worker may take to exit after its last message.
EXIT_GRACE_S = 5.0
#: How long after its connection was lost a worker's node may take to say how the worker has ended.
VERDICT_S = 3.0


class WorkerState(enum.StrEnum):
    """The state of one replica."""

    STARTING = "starting"
    READY = "ready"
    UNRESPONSIVE = "unresponsive"  # it has loaded, and says nothing now
    FAILED = "failed"
    STOPPED = "stopped"


class Owner(Protocol):
    """The owner of a replica, which hears of its changes.

    Attributes:
        adapters: those that a worker should have.
    """

    adapters: ModelAdapters

    def changed(self) -> None:
        """Its state has changed."""
        ...

    def loading(self, status: Status) -> None:
        """Its worker reports loading progress."""
        ...

    def restarted(self) -> None:
        """Its worker has ended by itself, and another is about to be started."""
        ...


#: States of a worker that has loaded.
LOADED: Final = (WorkerState.READY, WorkerState.UNRESPONSIVE)


class Replica:
    """One worker slot: the current worker, and its successors. Is the pool's `Worker` while it is ready.

    Attributes:
        spare: whether the slot is given up when its worker ends, however that does.
        info: what the last worker that has loaded says of itself.
        failure: why the slot was given up; "" if it was not.
        no_memory: whether its last worker did not load because there was no memory for it.
        restarts: the failures of its workers.
        settled: set once a worker has been ready for the first time, or none will be.
        adapters: those of the current worker.
        started_s: Unix time at which the current worker was started; 0.0 before the first.
        progress: how far a worker that is not ready is; None: nothing is heard of it yet, or it is ready, or given up.
        setback: how the worker before the current one ended, or why it did not load; "" once one is ready.
    """

    def __init__(
        self,
        spec: ReplicaSpec,
        placement: Placement,
        pool: Pool,
        owner: Owner,
        turns: asyncio.Semaphore | None = None,
        *,
        spare: bool = False,
    ) -> None:
        """Nothing is started yet.

        Args:
            pool: gets the worker while it is ready.
            turns: limits how many workers load at a time; None: no limit.
        """
        self.name, self.device = spec.name, spec.config.option.device
        self.spare = spare
        self.info = WorkerInfo()
        self.state = WorkerState.STARTING
        self.failure = ""
        self.no_memory = self._lacking = False
        self.restarts = Restarts(spec.config.serving.retry_threshold)
        self.settled = asyncio.Event()
        self.adapters = WorkerAdapters(owner.adapters.at_start, self.send)
        self.started_s = 0.0
        self.progress: Status | None = None
        self.setback = ""
        self._spec = spec
        self._placement = placement
        self._pool = pool
        self._owner = owner
        # A node that is waited for keeps no processor of this machine busy.
        self._is_remote = is_remote(spec.config)
        self._turn = Turn(None if self._is_remote else turns)
        self._log_extra = {"model": spec.config.label}
        self._killed = ""  # why `_hang_up` killed it, if it did
        self._was_ready = self._retiring = False
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self._started: Started | None = None
        self._responsiveness: Responsiveness | None = None
        self._channel: Channel | None = None
        self._loaded: asyncio.Future[str] = self._loop.create_future()  # "", or why it did not load
        self._closed = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The process of the current worker, if there is one on this machine."""
        return None if self._started is None else self._started.pid

    @property
    def node(self) -> str:
        """The machine of the current worker; "" where that is this one, or there is no worker."""
        return "" if self._started is None else self._started.node

    # ------------------------------------------------------------------------------------ pool.Worker

    def send(self, message: AnyMessage) -> None:
        """Queue a message for the worker."""
        if self._channel is not None:
            self._channel.send(message)

    def flush(self) -> None:
        """Send the queued messages now."""
        if self._channel is not None:
            self._channel.flush()

    def handle_message(self, message: AnyMessage) -> None:
        """Handle a message about no call: a ready worker that reports failure is about to exit: no more calls."""
        if isinstance(message, Done):
            self.adapters.answered(message)
        elif isinstance(message, Beat) and self._responsiveness is not None:
            self._responsiveness.set_answering(message.answers)
        elif isinstance(message, Status) and message.state == "failed":
            self._end("gave up")

    # ------------------------------------------------------------------------------------ life

    def start(self) -> None:
        """Keep a worker in this slot from now on, until `stop`, or until it cannot load."""
        self._task = asyncio.create_task(self._run())

    async def retire(self, timeout_s: float | None) -> None:
        """Stop, once the calls that the worker has are answered, or have failed after `timeout_s` seconds, if any."""
        self._retiring = True
        await self._pool.retire(self, timeout_s)
        await self.stop()

    async def stop(self) -> None:
        """Tell the worker to close its handler and exit; kill it if it does not. Nothing is left of it afterwards."""
        if not self._stopping.is_set():  # else the worker has been told already
            self._stopping.set()
            self.send(Stop())
        if self.state is WorkerState.READY:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), EXIT_GRACE_S)
        self.kill()
        if self._task is not None:
            await asyncio.wait({self._task})

    def kill(self) -> None:
        """Kill the current worker."""
        if self._started is not None:
            self._started.kill()

    async def _run(self) -> None:
        try:
            await self._live_on()
        except Exception as exc:  # the slot's boundary: after any error it shows as failed and leaves no worker
            log.exception("supervision of worker %s failed", self.name, extra=self._log_extra)
            self.failure = f"supervision failed: {exc}"
            self._become(WorkerState.FAILED)
        finally:
            self.kill()

    async def _live_on(self) -> None:
        while not self._ending:
            life = await self._live()
            if self._ending:
                break
            if self.spare:
                log.error("spare worker %s: %s", self.name, life.detail, extra=self._log_extra)
                self.failure = life.detail
                self._become(WorkerState.FAILED)
                return
            delay_s = self.restarts.after(life)
            if self.restarts.given_up:
                self.failure = life.detail
                self._become(WorkerState.FAILED)
                return
            again = f"in {delay_s:g} s" if delay_s else "now"
            if life.ready_s is None:
                log.warning(
                    "worker %s did not load, %s:\n%s\nit starts again %s",
                    *(self.name, self.restarts.attempt, life.detail, again),
                    extra=self._log_extra,
                )
            else:
                log.error("worker %s %s; it starts again %s", self.name, life.detail, again, extra=self._log_extra)
            self.setback = life.detail
            self.progress = Status("loading", f"starting again in {delay_s:g} s")
            self._owner.restarted()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)
        self._become(WorkerState.STOPPED)

    @property
    def _ending(self) -> bool:
        """Whether no worker is started in this slot any more."""
        return self._retiring or self._stopping.is_set()

    async def _live(self) -> Life:
        """Run one worker, once it may load, until it is gone."""
        try:
            await self._take_turn()
            self.progress = Status("loading", "starting its process")
            if self._ending:
                return Life(None, "it was stopped before it began")
            started = await begun(self._placement.start(self._spec, self._starting), self._stopping, self._is_remote)
            return Life(None, "it was stopped before it began") if started is None else await self._run_worker(started)
        except ModelLoadError as error:
            return Life(None, error.message, lacking=isinstance(error, MachineLoadError | MemoryLoadError))
        finally:
            self._turn.give_back()

    def _starting(self, status: Status) -> None:
        self.progress = status
        self._owner.loading(status)

    async def _run_worker(self, started: Started) -> Life:
        self._started, self.started_s = started, time.time()
        if self._stopping.is_set():
            self.kill()  # `stop` was called before there was anything to kill
        self._killed, self._lacking = "", False
        self._loaded, self._closed = self._loop.create_future(), asyncio.Event()
        self.adapters = WorkerAdapters(self._owner.adapters.at_start, self.send)
        closed, adapters = self._closed, self.adapters
        self._channel = Channel(self._on_messages, lambda: self._on_closed(closed, adapters))
        await self._channel.attach(started.connection)
        self._channel.send(Load(msgspec.msgpack.encode(self._spec.config)))
        self._responsiveness = Responsiveness(self._channel, started, self._spec.config, self._respond, self._hang_up)
        try:
            return await self._watch(started)
        finally:
            self._responsiveness.close()
            self._channel.close()
            self._channel = None
            self.kill()
            await started.exited
            self._started = None

    async def _watch(self, started: Started) -> Life:
        exited = started.exited
        timeout_s = self._spec.config.option.model_loading_timeout
        waiting: set[asyncio.Future[Any]] = {exited, self._loaded}
        done, _ = await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self._loaded in done:
            self._turn.give_back()
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
            self._end("has ended")
        ready_s = self._loop.time() - ready_at
        how = await started.how_it_ended(VERDICT_S if started.node else 1.0)
        self._end(how if started.node else "has ended", lost=not self._killed and started.lost())
        return Life(ready_s, self._killed or how)

    async def _take_turn(self) -> None:
        """Wait until this worker may load, or until `stop`."""
        if not self._was_ready:
            if self._turn.is_awaited:
                self.progress = Status("loading", "waiting until other workers have loaded")
            await self._turn.take(self._stopping)

    async def _last_words(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), 0.5)

    def _respond(self, responds: bool) -> None:
        if self.state not in LOADED or responds == (self.state is WorkerState.READY) or self._closed.is_set():
            return
        what = "responds again" if responds else "does not respond, and gets no requests until it does"
        log.warning("worker %s %s", self.name, what, extra=self._log_extra)
        self._pool.hold(self, not responds)
        self._become(WorkerState.READY if responds else WorkerState.UNRESPONSIVE)

    def _hang_up(self, reason: str) -> None:
        """Kill the worker, so that its successor is started."""
        log.error("worker %s %s: killed", self.name, reason, extra=self._log_extra)
        self._killed = reason
        self._end(reason)
        self.kill()

    def _on_messages(self, messages: list[AnyMessage]) -> None:
        if self.state in LOADED:
            if len(messages) == 1 and isinstance(messages[0], Beat):  # no sign that a call progresses
                self.handle_message(messages[0])
            else:
                self._pool.receive(self, messages)
            return
        if self._ending:  # it gets no calls any more
            return
        for position, message in enumerate(messages):
            if isinstance(message, Done):
                self.adapters.answered(message)
            if not isinstance(message, Status):
                continue
            if message.state == "ready":
                if left_gpu(self.info.engine, message.info.engine):
                    log.warning("worker %s found no GPU: its model is on the CPU now", self.name, extra=self._log_extra)
                self.info = message.info
                if self.adapters.lacks(self._owner.adapters):
                    self._catching_up = asyncio.create_task(self._catch_up(self.adapters))
                else:
                    self._enter()
                    self._pool.receive(self, messages[position + 1 :])
                    return
            elif message.state == "failed":
                self.no_memory, self._lacking = message.no_memory, message.no_memory or message.lacking
                self._set_loaded(message.detail or "the worker gave no reason")
            else:
                self.progress = message
                self._owner.loading(message)

    async def _catch_up(self, adapters: WorkerAdapters) -> None:
        """Have a worker that has loaded get the adapters that its model got since then; now it may have calls."""
        await adapters.become(self._owner.adapters, even_so=True)
        if adapters is self.adapters and not (self._ending or self._closed.is_set()):
            self._enter()

    def _enter(self) -> None:
        """Give the worker to the pool."""
        self._was_ready = True
        self.restarts.succeeded()
        assert self._responsiveness is not None
        self._responsiveness.loaded = True
        self._pool.add(self)  # first: its owner checks whether calls still wait
        self._become(WorkerState.READY)
        self._set_loaded("")

    def _set_loaded(self, outcome: str) -> None:
        if not self._loaded.done():
            self._loaded.set_result(outcome)

    def _on_closed(self, closed: asyncio.Event, adapters: WorkerAdapters) -> None:
        closed.set()
        adapters.lost()
        if closed is not self._closed:  # what its peer had not read kept the connection open until a successor ran
            return
        if self.node and self.state in LOADED:
            self._pool.hold(self, True)  # until it is known whether its node was lost: `_watch` ends it
        else:
            self._end("has ended")

    def _end(self, cause: str, *, lost: bool = False) -> None:
        """Take the worker out of the pool: it answers no more calls.

        Args:
            lost: whether it has ended for no reason of its own, with its node.
        """
        self._pool.remove(self, cause, lost=lost)
        if self.state in LOADED:
            self._become(WorkerState.STARTING)

    def _become(self, state: WorkerState) -> None:
        self.state = state
        if state is not WorkerState.STARTING:
            self.settled.set()
            self.progress = None
        if state is WorkerState.READY:
            self.setback = ""
        self._owner.changed()
