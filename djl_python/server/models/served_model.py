"""A served model: its workers, its pool, and its health.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import msgspec

from ...config import ModelConfig, bounds_of, is_remote
from ...core.engine_info import EngineInfo
from ...core.errors import ModelLoadError, UnavailableError, load_error
from ...dialects.shared.views import ModelStatus, RequestCounts
from ...ipc.protocol import Status, WorkerInfo
from ..metrics.model_metrics import ModelMetrics
from .adapters.adapter import Adapter, sources_of
from .adapters.model import ModelAdapters
from .health import Health, health_of, setback_of
from .placement import Placement, ReplicaSpec
from .pool.pool import Pool
from .replica import LOADED, Replica, WorkerState
from .routing.router import Router, Routing
from .scaling import WorkerLoad, on_device, scaling_of, with_workers, worker_configs

log = logging.getLogger(__name__)


class ServedModel:
    """A model with its workers and its pool. Is the `Owner` of its replicas.

    `on_progress` is called with each loading message, `on_change` when a worker's state has changed, `on_unused` when
    the last call has left its pool.

    Attributes:
        replicas: the workers that it should always have; without those that scaling down has removed.
        spares: the spare workers, which run while calls wait. Their failure does not fail the model.
        registered_s: Unix time of its registration.
        settled: set once the model has loaded, failed to load, or been stopped.
        started_s: Unix time at which its workers were started, that of its registration before.
        unloaded: whether it has no workers on purpose, see `rest`.
        tally: counts of its requests by outcome.
        adapters: the wanted ones; `config.adapters` are those that requests may name.
    """

    def __init__(
        self,
        config: ModelConfig,
        metrics: ModelMetrics,
        placement: Placement,
        *,
        turns: asyncio.Semaphore | None = None,
        on_progress: Callable[[ServedModel, Status], None] = lambda _model, _status: None,
        on_change: Callable[[ServedModel], None] = lambda _model: None,
        on_unused: Callable[[ServedModel], None] = lambda _model: None,
        growing: Callable[[ServedModel], AbstractAsyncContextManager[bool]] | None = None,
    ) -> None:
        """The model is PENDING, without workers, until `start`, `fail` or `rest`.

        Args:
            turns: limits how many workers load at a time, of all models that have it; None: no limit.
            growing: entered while a spare worker loads; says whether there is memory for it. None: there is.
        """
        self.config = config
        self.metrics = metrics
        self.log_extra = {"model": config.label}
        self.pool = Pool(
            config.name,
            config.serving.job_queue_size,
            config.option.predict_timeout,
            metrics,
            self._adapt,
            config.serving.batch_share,
            config.serving.batch_busy_share,
            lambda: on_unused(self),
            reruns=is_remote(config) and config.option.rerun_lost_requests,
            router=Router(Routing(config.serving.routing)),
        )
        self.adapters = ModelAdapters(config.adapters)
        self.replicas: list[Replica] = []
        self.spares: list[Replica] = []
        self.registered_s = self.started_s = time.time()
        self.unloaded = False
        self.settled = asyncio.Event()
        self.tally = RequestCounts()
        self._placement = placement
        self._turns = turns
        self._on_progress = on_progress
        self._on_change = on_change
        self._on_unused = on_unused
        self._growing = growing
        self._growths: dict[str, asyncio.Task[None]] = {}  # by device
        self._broken = self._not_loaded = ""
        self._was_ready = False
        self._known = WorkerInfo()  # of an earlier instance's workers
        self._removed: list[Replica] = []  # by scaling down, and perhaps not gone yet
        self._scaling = scaling_of(config)
        self._adapts = False  # whether the number of workers follows the load
        self._being_scaled = False  # and not for the time being
        self._timer: asyncio.TimerHandle | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._names: set[str] = set()  # of another instance's workers
        self._counted: Counter[WorkerState] = Counter()  # as added to the metrics

    def successor(self, config: ModelConfig) -> ServedModel:
        """A new instance of the model with this configuration, not started yet, which can run beside this one."""
        made = ServedModel(
            config,
            self.metrics,
            self._placement,
            turns=self._turns,
            on_progress=self._on_progress,
            on_change=self._on_change,
            on_unused=self._on_unused,
            growing=self._growing,
        )
        made._names = {replica.name for replica in self._all}
        made.adapters.take_over(self.adapters)
        made._show_adapters()
        return made

    def same_again(self, config: ModelConfig | None = None) -> ServedModel:
        """A new instance of the same registration: its counts go on. Arguments as of `successor`."""
        made = self.successor(config or self.config)
        made.registered_s, made.tally, made._known = self.registered_s, self.tally, self.info
        return made

    def start(self, most: int | None = None) -> None:
        """Start the workers, `most` of them if that is given; `on_change` reports their states."""
        self.replicas = []
        self.started_s = time.time()
        self.metrics.loaded(True)
        for config in worker_configs(self.config)[:most]:
            self.replicas.append(self._replica(config))
        self._adapts = most is None
        self.changed()
        for replica in self.replicas:
            replica.start()

    def fail(self, problem: str) -> None:
        """Make a model that was not started FAILED: loading it can't even be tried."""
        self._broken = problem
        self.changed()

    def rest(self, failure: str = "") -> None:
        """Have a model that was not started wait, without workers, for a request: a successor of it answers that.

        Args:
            failure: why the last attempt to load it failed; "" if it did not.
        """
        self.unloaded, self._not_loaded = True, failure
        self.metrics.loaded(False)
        self.pool.refusal = f"model {self.config.name!r} is not loaded"
        self.changed()

    async def loaded(self) -> None:
        """Wait until every worker has been ready.

        Raises:
            ModelLoadError: one has failed to load, or was stopped before it had.
        """
        await _all_ready(self.replicas)

    async def scale(self, least: int, most: int, drain_timeout_s: float) -> None:
        """Have from `least` to `most` workers on each device, depending on the load.

        New ones are waited for; removed ones first finish their calls. Workers that have failed are removed, and others
        take their places.

        Args:
            drain_timeout_s: how many seconds a removed worker's calls get to finish.

        Raises:
            ModelLoadError: a new worker did not load: all new ones are removed again, and no other was. Or no worker
                can be started at all, see `fail`.
        """
        if self._broken:
            raise ModelLoadError(self._broken)
        before, spares = self.config, self.spares
        self.config, self._being_scaled = with_workers(before, least, most), True
        left = sorted(
            self.able,
            key=lambda worker: (worker.state is not WorkerState.READY, worker.spare),
        )
        kept, added = [], []
        for config in worker_configs(self.config):
            existing = next((worker for worker in left if worker.device == config.option.device), None)
            if existing is not None:
                left.remove(existing)
                kept.append(existing)
                existing.spare = False
            else:
                added.append(self._replica(config))
                self.replicas.append(added[-1])  # so that the next has another name
        self.changed()
        for replica in added:
            replica.start()
        try:
            await _all_ready(added)
        except ModelLoadError:
            self.config = before
            for spare in spares:
                spare.spare = True
            await self._remove(added, drain_timeout_s)
            raise
        else:
            room = {device: most - least for device, (least, most) in bounds_of(self.config).items()}
            removed = [worker for worker in self.workers if worker not in kept and worker not in added]
            self.replicas, self.spares = [*kept, *added], []
            for worker in left:
                if worker in removed and room[worker.device] > 0:
                    room[worker.device] -= 1
                    worker.spare = True
                    self.spares.append(worker)
            self._scaling = scaling_of(self.config)
            await self._remove([worker for worker in removed if worker not in self.spares], drain_timeout_s)
        finally:
            self._being_scaled = False
            self._adapt()

    def lacking(self, least: int) -> int:
        """How many workers have to be added for so many on each device."""
        wanted = Counter(config.option.device for config in worker_configs(with_workers(self.config, least, least)))
        return (wanted - Counter(worker.device for worker in self.able)).total()

    async def change_adapter(self, name: str, now: Adapter | None) -> None:
        """Have all workers get an adapter, another one of this name, or (None) none of this name.

        One that goes is refused at once, and gone when its requests are answered. Raises ServingError if a worker
        refuses it, or has ended, or none is ready: all is as it was.
        """
        ready = [worker.adapters for worker in self.workers if worker.state in LOADED]
        if now is None:
            self._show_adapters(without=name)
        try:
            await self.adapters.change(ready, name, now)
        finally:
            self._show_adapters()

    async def stop(self, reason: str = "the server is shutting down") -> None:
        """End the workers. Calls that are still waiting or in flight fail first, with `reason`."""
        self._adapts = False
        self._adapt()
        for growth in self._growths.values():
            growth.cancel()
        self.pool.refusal = reason
        self.pool.fail_all(UnavailableError(self.pool.refusal), "shutdown")
        await asyncio.gather(*(replica.stop() for replica in self._all), *self._retiring)
        self._count(Counter())
        self.settled.set()  # loading need not be waited for any more

    def kill(self) -> None:
        """Kill the workers at once."""
        for replica in self._all:
            replica.kill()

    @property
    def workers(self) -> list[Replica]:
        """All workers, without those that scaling down has removed."""
        return [*self.replicas, *self.spares]

    @property
    def able(self) -> list[Replica]:
        """The workers that can answer, or will."""
        return [worker for worker in self.workers if worker.state not in (WorkerState.FAILED, WorkerState.STOPPED)]

    @property
    def ready(self) -> bool:
        """Whether a worker can answer now."""
        return any(replica.state is WorkerState.READY for replica in self.workers)

    @property
    def health(self) -> Health:
        """The model's health, from the states of its workers."""
        if self._broken:
            return Health.FAILED
        if self.unloaded:
            return Health.UNLOADED
        return health_of(self.replicas, ready=self.ready, was_ready=self._was_ready)

    @property
    def failure(self) -> str:
        """Why the model, or one of its workers, has failed; "" if none has."""
        return (
            self._broken
            or self._not_loaded
            or next((replica.failure for replica in self.replicas if replica.failure), "")
        )

    @property
    def setback(self) -> str:
        """The message about workers that restart again and again without success; "" if there are none."""
        return setback_of(self.replicas) if self._was_ready else ""

    @property
    def lost(self) -> bool:
        """Whether it has served, and its machine has long lacked what every worker needs to restart."""
        return bool(self.replicas) and not self.ready and all(replica.restarts.lost for replica in self.replicas)

    @property
    def no_memory(self) -> bool:
        """Whether that is why it has failed."""
        return any(replica.failure and replica.no_memory for replica in self.replicas)

    @property
    def engine(self) -> EngineInfo | None:
        """The engine of the first ready worker that has one; of an unloaded model, the one that it had."""
        if self.unloaded:
            return self._known.engine
        ready = (replica.info.engine for replica in self.workers if replica.state is WorkerState.READY)
        return next((engine for engine in ready if engine is not None), None)

    @property
    def info(self) -> WorkerInfo:
        """What the first worker that has loaded says of itself; before that, what is known of earlier ones."""
        unknown = WorkerInfo()
        return next((replica.info for replica in self.replicas if replica.info != unknown), self._known)

    @property
    def status(self) -> ModelStatus:
        """The model as pages see it."""
        return ModelStatus(
            config=self.config,
            ready=self.ready,
            failed=self.health is Health.FAILED,
            workers=sum(replica.state is WorkerState.READY for replica in self.workers),
            registered_s=self.registered_s,
            in_flight=self.pool.in_flight,
            queued=self.pool.queued,
            tally=self.tally,
            engine=self.engine,
            task=self.info.task,
            unloaded=self.unloaded,
        )

    def answered(self, status: int, duration_s: float) -> None:
        """Count a request that has ended, `duration_s` seconds after its last byte arrived."""
        self.tally = self.tally.with_answer(status, duration_s)

    def changed(self) -> None:
        """Apply a change of a worker's state to metrics, pool and `settled`, and call `on_change`."""
        for gone in [spare for spare in self.spares if spare.state is WorkerState.FAILED]:
            self.spares.remove(gone)
            self._scaling.failed(gone.device, time.monotonic())
        self._was_ready = self._was_ready or self.ready
        self._count(Counter(replica.state for replica in self._all))
        if self.health is Health.FAILED:
            self.pool.refusal = f"model {self.config.name!r} has failed"
            self.pool.fail_all(UnavailableError(self.pool.refusal), "worker_died")
        self._on_change(self)
        if self.health is not Health.PENDING:
            self.settled.set()
        self._adapt()

    def loading(self, status: Status) -> None:
        """A worker reports loading progress."""
        self._on_progress(self, status)

    def restarted(self) -> None:
        """A worker that ended by itself is started again."""
        self.metrics.restarts.inc()

    @property
    def _all(self) -> list[Replica]:
        """The workers, and those that may be ending."""
        return [*self.workers, *self._removed]

    def _adapt(self) -> None:
        """Start and end spare workers according to the load, and decide again in time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._adapts or self._being_scaled or self._scaling.fixed:
            return
        now_s, (waiting, since_s) = time.monotonic(), self.pool.waiting
        decision = self._scaling.decide(now_s, waiting, since_s, [self._load_of(worker) for worker in self.able])
        for device in decision.grow:
            if self._growing is None:
                self._add_spare(device)
            elif device not in self._growths:
                self._growths[device] = asyncio.create_task(self._grow(self._growing, device))
        for spare in [spare for spare in self.spares if spare.name in decision.shrink]:
            log.info("worker %s goes: it has nothing to do", spare.name, extra=self.log_extra)
            self._withdraw([spare])
            retiring = asyncio.create_task(self._let_go([spare], None))
            self._retiring.add(retiring)
            retiring.add_done_callback(self._retiring.discard)
        self._count(Counter(replica.state for replica in self._all))
        if decision.again_s is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, decision.again_s - now_s), self._adapt)

    def _add_spare(self, device: str) -> Replica:
        spare = self._replica(on_device(self.config, device), spare=True)
        log.info("worker %s is added: %d requests wait", spare.name, self.pool.waiting[0], extra=self.log_extra)
        self.spares.append(spare)
        spare.start()
        return spare

    async def _grow(self, growing: Callable[[ServedModel], AbstractAsyncContextManager[bool]], device: str) -> None:
        """Start a spare worker, if there is memory for it; otherwise, none is tried for a while."""
        try:
            async with growing(self) as there_is_room:
                if not there_is_room:
                    log.info("no worker is added: memory_budget leaves no room for one", extra=self.log_extra)
                    self._scaling.failed(device, time.monotonic())
                elif self._adapts and not self._being_scaled:
                    await self._add_spare(device).settled.wait()
        finally:
            del self._growths[device]
            self._adapt()

    def _load_of(self, worker: Replica) -> WorkerLoad:
        ready, idle_since_s = worker.state is WorkerState.READY, self.pool.workers.idle_since(worker)
        crowded_since_s = self.pool.workers.crowded_since(worker)
        return WorkerLoad(worker.name, worker.device, worker.spare, ready, idle_since_s, crowded_since_s)

    def _show_adapters(self, without: str = "") -> None:
        """Have requests find the adapters that there are."""
        sources = sources_of(self.adapters.wanted)
        sources.pop(without, None)
        self.config = msgspec.structs.replace(self.config, adapters=sources)

    def _replica(self, config: ModelConfig, *, spare: bool = False) -> Replica:
        config = msgspec.structs.replace(config, adapters=sources_of(self.adapters.at_start))
        taken = self._names | {replica.name for replica in self._all}
        name = next(name for name in map(str, itertools.count()) if name not in taken)
        return Replica(ReplicaSpec(name, config), self._placement, self.pool, self, self._turns, spare=spare)

    async def _remove(self, replicas: Sequence[Replica], drain_timeout_s: float) -> None:
        self._withdraw(replicas)
        self.changed()
        await self._let_go(replicas, drain_timeout_s)

    def _withdraw(self, replicas: Sequence[Replica]) -> None:
        """Remove these from the workers that the model should have."""
        self.replicas = [replica for replica in self.replicas if replica not in replicas]
        self.spares = [spare for spare in self.spares if spare not in replicas]
        self._removed += replicas

    async def _let_go(self, replicas: Sequence[Replica], drain_timeout_s: float | None) -> None:
        """End workers that have been withdrawn, once their calls are answered."""
        await asyncio.gather(*(replica.retire(drain_timeout_s) for replica in replicas))
        self._removed = [replica for replica in self._removed if replica not in replicas]
        self.changed()

    def _count(self, states: Counter[WorkerState]) -> None:
        for state in WorkerState:
            if state is not WorkerState.STOPPED:
                self.metrics.workers(state, states[state] - self._counted[state])
        self._counted = states


async def _all_ready(replicas: Sequence[Replica]) -> None:
    await asyncio.gather(*(replica.settled.wait() for replica in replicas))
    for replica in replicas:
        if replica.state in (WorkerState.FAILED, WorkerState.STOPPED):
            raise load_error(replica.failure or "it was stopped before it had loaded", no_memory=replica.no_memory)
