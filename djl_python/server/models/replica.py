"""One worker slot of a model: starts a worker in it, and another when that one dies, until the slot is given up.

Runs in the front end's event loop; a `Placement` starts worker processes; `supervision` runs each worker, and decides
when the next one starts. A worker loads in its turn until it has been ready once; later restarts do not wait for a
turn, because calls may be waiting.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import logging
import time
from contextlib import suppress
from typing import Final, Protocol

from ...config import is_remote
from ...core.errors import MachineLoadError, MemoryLoadError, ModelLoadError
from ...ipc.protocol import AnyMessage, Status, Stop, WorkerInfo
from .adapters.model import ModelAdapters
from .adapters.worker import WorkerAdapters
from .placement import Placement, ReplicaSpec, Started
from .pool.pool import Pool
from .supervision.restarts import Life, Restarts, left_gpu
from .supervision.running_worker import RunningWorker
from .supervision.turns import Turn, begun

log = logging.getLogger(__name__)


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
    """One worker slot: the current worker, and its successors. Is the pool's `Worker` while it is ready, and the `Slot`
    of each.

    Attributes:
        spare: whether the slot is given up when its worker ends, however that does.
        info: what the last worker that has loaded says of itself.
        failure: why the slot was given up; "" if it was not.
        no_memory: whether its last worker did not load because there was no memory for it.
        restarts: the failures of its workers.
        settled: set once a worker has been ready for the first time, or none will be.
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
        self.no_memory = False
        self.restarts = Restarts(spec.config.serving.retry_threshold)
        self.settled = asyncio.Event()
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
        self._was_ready = self._retiring = False
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._worker: RunningWorker | None = None  # the current one, or the last

    @property
    def pid(self) -> int | None:
        """The process of the current worker, if there is one on this machine."""
        return None if self._worker is None else self._worker.pid

    @property
    def node(self) -> str:
        """The machine of the current worker; "" where that is this one, or there is no worker."""
        return "" if self._worker is None else self._worker.node

    @property
    def adapters(self) -> WorkerAdapters:
        """Those of the current worker, which has loaded."""
        assert self._worker is not None
        return self._worker.adapters

    # ------------------------------------------------------------------------------------ pool.Worker

    def send(self, message: AnyMessage) -> None:
        """Queue a message for the worker."""
        if (worker := self._worker) is not None and worker.channel is not None:
            worker.channel.send(message)

    def flush(self) -> None:
        """Send the queued messages now."""
        if (worker := self._worker) is not None and worker.channel is not None:
            worker.channel.flush()

    def handle_message(self, message: AnyMessage) -> None:
        """Handle a message about no call."""
        if self._worker is not None:
            self._worker.handle_message(message)

    # ------------------------------------------------------------------------------------ running_worker.Slot

    @property
    def ending(self) -> bool:
        """Whether no worker is started in this slot any more, and the current one gets no calls."""
        return self._retiring or self._stopping.is_set()

    def loading(self, status: Status) -> None:
        """Its worker reports loading progress."""
        self.progress = status
        self._owner.loading(status)

    def load_ended(self) -> None:
        """Its worker has loaded, or will not: let another one load."""
        self._turn.give_back()

    def loaded(self, info: WorkerInfo) -> None:
        """Its worker has loaded."""
        if left_gpu(self.info.engine, info.engine):
            log.warning("worker %s found no GPU: its model is on the CPU now", self.name, extra=self._log_extra)
        self.info = info

    def enter(self) -> None:
        """Give the worker to the pool."""
        self._was_ready = True
        self.restarts.succeeded()
        self._pool.add(self)  # first: its owner checks whether calls still wait
        self._become(WorkerState.READY)

    def responds(self, responds: bool) -> None:
        """Give a worker that does not respond no more calls, or give it calls again."""
        if responds == (self.state is WorkerState.READY):
            return
        what = "responds again" if responds else "does not respond, and gets no requests until it does"
        log.warning("worker %s %s", self.name, what, extra=self._log_extra)
        self._pool.hold(self, not responds)
        self._become(WorkerState.READY if responds else WorkerState.UNRESPONSIVE)

    def disconnected(self) -> None:
        """Give the worker no more calls until it is known how it has ended."""
        self._pool.hold(self, True)

    def leave(self, cause: str, *, lost: bool = False) -> None:
        """Take the worker out of the pool: it answers no more calls."""
        self._pool.remove(self, cause, lost=lost)
        if self.state in LOADED:
            self._become(WorkerState.STARTING)

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
        if self.state is WorkerState.READY and self._worker is not None:
            await self._worker.wait_closed()
        self.kill()
        if self._task is not None:
            await asyncio.wait({self._task})

    def kill(self) -> None:
        """Kill the current worker."""
        if self._worker is not None:
            self._worker.kill()

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
        while not self.ending:
            life = await self._live()
            if self.ending:
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

    async def _live(self) -> Life:
        """Run one worker, once it may load, until it is gone."""
        try:
            await self._take_turn()
            self.progress = Status("loading", "starting its process")
            if self.ending:
                return Life(None, "it was stopped before it began")
            started = await begun(self._placement.start(self._spec, self.loading), self._stopping, self._is_remote)
            return Life(None, "it was stopped before it began") if started is None else await self._run_worker(started)
        except ModelLoadError as error:
            return Life(None, error.message, lacking=isinstance(error, MachineLoadError | MemoryLoadError))
        finally:
            self._turn.give_back()

    async def _run_worker(self, started: Started) -> Life:
        receive = functools.partial(self._pool.receive, self)
        worker = RunningWorker(self.name, started, self._spec.config, self._owner.adapters, self, receive)
        self._worker, self.started_s = worker, time.time()
        if self._stopping.is_set():
            self.kill()  # `stop` was called before there was anything to kill
        try:
            return await worker.run()
        finally:
            if worker.no_memory is not None:
                self.no_memory = worker.no_memory

    async def _take_turn(self) -> None:
        """Wait until this worker may load, or until `stop`."""
        if not self._was_ready:
            if self._turn.is_awaited:
                self.progress = Status("loading", "waiting until other workers have loaded")
            await self._turn.take(self._stopping)

    def _become(self, state: WorkerState) -> None:
        self.state = state
        if state is not WorkerState.STARTING:
            self.settled.set()
            self.progress = None
        if state is WorkerState.READY:
            self.setback = ""
        self._owner.changed()
