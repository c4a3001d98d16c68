"""One worker slot of a model: starts a worker in it, and another when that one dies, until the slot is given up.

Runs in the front end's event loop; where workers run is a `Placement`'s business. A worker that dies after it was ready
is restarted; one that cannot load is retried `retry_threshold` times and then given up. Until it has been ready, a
worker loads in its turn; from then on, calls may be waiting for it.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from ...core.engine_info import EngineInfo
from ...core.errors import ModelLoadError
from ...ipc.channel import Channel
from ...ipc.protocol import AnyMessage, Done, Load, Status, Stop
from .adapters.model import ModelAdapters
from .adapters.worker import WorkerAdapters
from .placement import Placement, ReplicaSpec, Started
from .pool import Pool

log = logging.getLogger(__name__)

#: Attempts to load a worker that was ready before: the memory of the dead one may not be free yet.
RELOAD_ATTEMPTS = 3
#: A restarted worker that was ready for less than this time is restarted only after a delay.
SHORT_LIFE_S = 60.0
BACKOFF_S, BACKOFF_MAX_S = 0.5, 30.0
#: How long a worker may take to exit after its last message.
EXIT_GRACE_S = 5.0


class WorkerState(enum.StrEnum):
    """The state of one replica."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"


class Owner(Protocol):
    """Whose replica it is: hears what becomes of it.

    Attributes:
        adapters: those that a worker should have.
    """

    adapters: ModelAdapters

    def changed(self) -> None:
        """Its state has changed."""
        ...

    def loading(self, status: Status) -> None:
        """Its worker, which loads, tells how far it is."""
        ...

    def restarted(self) -> None:
        """Its worker has ended by itself, and another is about to be started."""
        ...


@dataclass(frozen=True)
class _Life:
    """The life of one worker. `ready_s`: how long it was ready; None: it never was. `detail`: how it ended."""

    ready_s: float | None
    detail: str


class Replica:
    """One worker slot: the current worker, and its successors. Is the pool's `Worker` while it is ready.

    Attributes:
        spare: whether the slot is given up when its worker ends, however that does.
        failure: why the slot was given up; "" if it was not.
        no_memory: whether its last worker did not load because there was no memory for it.
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
        self.capacity, self.at_once, self.queries = 1, 1, 0
        self.engine: EngineInfo | None = None
        self.example = ""
        self.state = WorkerState.STARTING
        self.failure = ""
        self.no_memory = False
        self.settled = asyncio.Event()
        self.adapters = WorkerAdapters(owner.adapters.at_start, self.send)
        self.started_s = 0.0
        self.progress: Status | None = None
        self.setback = ""
        self._spec = spec
        self._placement = placement
        self._pool = pool
        self._owner = owner
        self._turns = turns
        self._log_extra = {"model": spec.config.label}
        self._killed = ""  # why `hang_up` killed it, if it did
        self._was_ready = self._has_turn = self._retiring = False
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self._started: Started | None = None
        self._channel: Channel | None = None
        self._loaded: asyncio.Future[str] = self._loop.create_future()  # "", or why it did not load
        self._closed = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The process of the current worker, if there is one on this machine."""
        return None if self._started is None else self._started.pid

    # ------------------------------------------------------------------------------------ pool.Worker

    def send(self, message: AnyMessage) -> None:
        """Queue a message for the worker."""
        if self._channel is not None:
            self._channel.send(message)

    def flush(self) -> None:
        """Send the queued messages now."""
        if self._channel is not None:
            self._channel.flush()

    def said(self, message: AnyMessage) -> None:
        """Handle a message about no call: a ready worker that reports failure is about to exit: no more calls."""
        if isinstance(message, Done):
            self.adapters.answered(message)
        elif isinstance(message, Status) and message.state == "failed":
            self._leave("gave up")

    def hang_up(self, reason: str) -> None:
        """Kill the worker, so that its successor is started."""
        log.error("worker %s %s: killed", self.name, reason, extra=self._log_extra)
        self._killed = reason
        self._leave(reason)
        self.kill()

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
        failed_loads = quick_deaths = restarts = 0
        retries = self._spec.config.serving.retry_threshold
        while not self._ending:
            life = await self._live()
            if self._ending:
                break
            if self.spare:
                log.error("spare worker %s: %s", self.name, life.detail, extra=self._log_extra)
                self.failure = life.detail
                self._become(WorkerState.FAILED)
                return
            if life.ready_s is None:
                failed_loads += 1
                if failed_loads > retries:
                    self.failure = life.detail
                    self._become(WorkerState.FAILED)
                    return
                log.warning(
                    "worker %s did not load, attempt %d of %d:\n%s",
                    *(self.name, failed_loads, retries + 1, life.detail),
                    extra=self._log_extra,
                )
                delay_s = _backoff(failed_loads)
            else:
                retries = max(retries, RELOAD_ATTEMPTS - 1)
                failed_loads = 0
                quick_deaths = quick_deaths + 1 if restarts and life.ready_s < SHORT_LIFE_S else 0
                delay_s = _backoff(quick_deaths)
                again = f"in {delay_s:g} s" if delay_s else "now"
                log.error("worker %s %s; it starts again %s", self.name, life.detail, again, extra=self._log_extra)
            self.setback = life.detail
            self.progress = Status("loading", f"starting again in {delay_s:g} s")
            restarts += 1
            self._owner.restarted()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)
        self._become(WorkerState.STOPPED)

    @property
    def _ending(self) -> bool:
        """Whether no worker is started in this slot any more."""
        return self._retiring or self._stopping.is_set()

    async def _live(self) -> _Life:
        """Run one worker, once it may load, until it is gone."""
        try:
            await self._take_turn()
            self.progress = Status("loading", "starting its process")
            if self._ending:
                return _Life(None, "it was stopped before it began")
            return await self._run_worker(await self._placement.start(self._spec))
        except ModelLoadError as error:
            return _Life(None, error.message)
        finally:
            self._give_turn_back()

    async def _run_worker(self, started: Started) -> _Life:
        self._started, self.started_s = started, time.time()
        if self._stopping.is_set():
            self.kill()  # `stop` was called before there was anything to kill
        self._killed = ""
        self._loaded, self._closed = self._loop.create_future(), asyncio.Event()
        self.adapters = WorkerAdapters(self._owner.adapters.at_start, self.send)
        self._channel = Channel(self._on_messages, self._on_closed)
        await self._channel.attach(started.connection)
        self._channel.send(Load(msgspec.msgpack.encode(self._spec.config)))
        try:
            return await self._watch(started.exited)
        finally:
            self._channel.close()
            self._channel = None
            self.kill()
            await started.exited
            self._started = None

    async def _watch(self, exited: asyncio.Future[str]) -> _Life:
        timeout_s = self._spec.config.option.model_loading_timeout
        waiting: set[asyncio.Future[Any]] = {exited, self._loaded}
        done, _ = await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self._loaded in done:
            self._give_turn_back()
        if not done:
            return _Life(
                None,
                f"loading took longer than {timeout_s:g} s: raise option.model_loading_timeout "
                "(or MODEL_LOADING_TIMEOUT) if the model needs more time",
            )
        if exited in done and not self._loaded.done():
            await self._last_words()
        if not self._loaded.done() or self._loaded.result():
            how = await _ended(exited, EXIT_GRACE_S)
            return _Life(None, self._loaded.result() if self._loaded.done() else f"the worker {how} while loading")
        ready_at = self._loop.time()
        closed = asyncio.create_task(self._closed.wait())
        waiting = {exited, closed}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await self._last_words()  # messages that it sent before it ended are still on their way
        closed.cancel()
        self._leave("has ended")
        ready_s = self._loop.time() - ready_at
        how = await _ended(exited, 1.0)
        return _Life(ready_s, self._killed or how)

    async def _take_turn(self) -> None:
        """Wait until this worker may load, or until `stop`."""
        if self._turns is None or self._was_ready:
            return
        if self._turns.locked():
            self.progress = Status("loading", "waiting until other workers have loaded")
        taken = asyncio.ensure_future(self._turns.acquire())
        stopped = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((taken, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        self._has_turn = not taken.cancel()

    def _give_turn_back(self) -> None:
        if self._has_turn and self._turns is not None:
            self._has_turn = False
            self._turns.release()

    async def _last_words(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), 0.5)

    def _on_messages(self, messages: list[AnyMessage]) -> None:
        if self.state is WorkerState.READY:
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
                self.capacity, self.queries = max(1, message.capacity), message.queries
                self.at_once = message.at_once or self.capacity
                self.engine, self.example = message.engine, message.example
                if self.adapters.lacks(self._owner.adapters):
                    self._catching_up = asyncio.create_task(self._catch_up(self.adapters))
                else:
                    self._enter()
                    self._pool.receive(self, messages[position + 1 :])
                    return
            elif message.state == "failed":
                self.no_memory = message.no_memory
                self._settle(message.detail or "the worker gave no reason")
            else:
                self.progress = message
                self._owner.loading(message)

    async def _catch_up(self, adapters: WorkerAdapters) -> None:
        """Have a worker that has loaded get the adapters that its model got since then; now it may have calls."""
        await adapters.become(self._owner.adapters, even_so=True)
        if adapters is self.adapters and not (self._ending or self._closed.is_set()):
            self._enter()

    def _enter(self) -> None:
        """Have the worker get calls."""
        self._was_ready = True
        self._pool.add(self)  # first: its owner is to see whether calls still wait
        self._become(WorkerState.READY)
        self._settle("")

    def _settle(self, outcome: str) -> None:
        if not self._loaded.done():
            self._loaded.set_result(outcome)

    def _on_closed(self) -> None:
        self._closed.set()
        self.adapters.lost()
        self._leave("has ended")

    def _leave(self, cause: str) -> None:
        """Take the worker out of the pool: it answers no more."""
        self._pool.remove(self, cause)
        if self.state is WorkerState.READY:
            self._become(WorkerState.STARTING)

    def _become(self, state: WorkerState) -> None:
        self.state = state
        if state is not WorkerState.STARTING:
            self.settled.set()
            self.progress = None
        if state is WorkerState.READY:
            self.setback = ""
        self._owner.changed()


async def _ended(exited: asyncio.Future[str], timeout_s: float) -> str:
    """How a worker ended, if that is known within this time."""
    await asyncio.wait({exited}, timeout=timeout_s)
    return exited.result() if exited.done() else "closed its connection"


def _backoff(times: int) -> float:
    # No larger exponents: a float would overflow after a night of restarts.
    return min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(times - 1, 100)) if times else 0.0
