"""A served model: its workers, its pool, and its health.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from ...config import ModelConfig, bounds_of
from ...core.engine_info import EngineInfo
from ...core.errors import ModelLoadError, UnavailableError, load_error
from ...dialects.shared.base import ModelStatus, RequestCounts
from ...ipc.protocol import Status
from ..metrics import ModelMetrics
from .adapters.adapter import Adapter, sources_of
from .adapters.model import ModelAdapters
from .placement import Placement, ReplicaSpec
from .pool import Pool
from .replica import Replica, WorkerState
from .scaling import WorkerLoad, on_device, scaling_of, with_workers, worker_configs

log = logging.getLogger(__name__)


class Health(enum.StrEnum):
    """The health of a model, in DJL's words."""

    PENDING = "PENDING"  # loading for the first time
    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"  # was ready, has fewer ready workers than it should
    FAILED = "FAILED"


class ServedModel:
    """A model with its workers and its pool. Is the `Owner` of its replicas.

    `on_progress` is called with each loading message, `on_change` when a worker's state has changed.

    Attributes:
        replicas: the workers that it should always have; without those that scaling down has removed.
        spares: those that it has while there is much to do. Nothing is made of their failure.
        registered_s: Unix time of its registration.
        settled: set once the model has loaded, failed to load, or been stopped.
        tally: counts of its requests by outcome.
        adapters: those that it should have; `config.adapters` are those that requests may name.
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
    ) -> None:
        """The model is PENDING, without workers, until `start` or `fail`.

        Args:
            turns: limits how many workers load at a time, of all models that have it; None: no limit.
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
        )
        self.adapters = ModelAdapters(config.adapters)
        self.replicas: list[Replica] = []
        self.spares: list[Replica] = []
        self.registered_s = time.time()
        self.settled = asyncio.Event()
        self.tally = RequestCounts()
        self._placement = placement
        self._turns = turns
        self._on_progress = on_progress
        self._on_change = on_change
        self._broken = ""
        self._was_ready = False
        self._removed: list[Replica] = []  # by scaling down, and perhaps not gone yet
        self._scaling = scaling_of(config)
        self._adapts = False  # whether the number of workers follows the load
        self._being_scaled = False  # and not for the time being
        self._timer: asyncio.TimerHandle | None = None
        self._leaving: set[asyncio.Task[None]] = set()
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
        )
        made._names = {replica.name for replica in self._all}
        made.adapters.take_over(self.adapters)
        made._show_adapters()
        return made

    def start(self, most: int | None = None) -> None:
        """Start the workers, `most` of them if that is given; `on_change` reports their states."""
        self.replicas = []
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

    async def loaded(self) -> None:
        """Wait until every worker has been ready.

        Raises:
            ModelLoadError: one has failed to load, or was stopped before it had.
        """
        await _all_ready(self.replicas)

    async def scale(self, least: int, most: int, drain_timeout_s: float) -> None:
        """Have so many workers on each device, those that are more than `least` as long as there is much to do.

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
            self._able,
            key=lambda one: (one.state is not WorkerState.READY, one.spare),
        )
        kept, added = [], []
        for config in worker_configs(self.config):
            found = next((one for one in left if one.device == config.option.device), None)
            if found is not None:
                left.remove(found)
                kept.append(found)
                found.spare = False
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
            for one in spares:
                one.spare = True
            await self._remove(added, drain_timeout_s)
            raise
        else:
            room = {device: most - least for device, (least, most) in bounds_of(self.config).items()}
            removed = [one for one in self.workers if one not in kept and one not in added]
            self.replicas, self.spares = [*kept, *added], []
            for one in left:
                if one in removed and room[one.device] > 0:
                    room[one.device] -= 1
                    one.spare = True
                    self.spares.append(one)
            self._scaling = scaling_of(self.config)
            await self._remove([one for one in removed if one not in self.spares], drain_timeout_s)
        finally:
            self._being_scaled = False
            self._adapt()

    async def change_adapter(self, name: str, now: Adapter | None) -> None:
        """Have all workers get an adapter, another one of this name, or (None) none of this name.

        One that goes is refused at once, and gone when its requests are answered. Raises ServingError if a worker
        refuses it, or has ended, or none is ready: all is as it was.
        """
        ready = [one.adapters for one in self.workers if one.state is WorkerState.READY]
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
        self.pool.refusal = reason
        self.pool.fail_all(UnavailableError(self.pool.refusal), "shutdown")
        await asyncio.gather(*(replica.stop() for replica in self._all), *self._leaving)
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
    def ready(self) -> bool:
        """Whether a worker can answer now."""
        return any(replica.state is WorkerState.READY for replica in self.workers)

    @property
    def health(self) -> Health:
        """The model's health, from the states of its workers."""
        if self._broken:
            return Health.FAILED
        states = {replica.state for replica in self.replicas}
        if states == {WorkerState.READY}:
            return Health.HEALTHY
        if states == {WorkerState.FAILED} and not self.ready:
            return Health.FAILED
        return Health.UNHEALTHY if self._was_ready else Health.PENDING

    @property
    def failure(self) -> str:
        """Why the model, or one of its workers, has failed; "" if none has."""
        return self._broken or next((replica.failure for replica in self.replicas if replica.failure), "")

    @property
    def no_memory(self) -> bool:
        """Whether that is why it has failed."""
        return any(replica.failure and replica.no_memory for replica in self.replicas)

    @property
    def engine(self) -> EngineInfo | None:
        """What runs the model, in the first worker that is ready and has an engine."""
        ready = (replica.engine for replica in self.workers if replica.state is WorkerState.READY)
        return next((engine for engine in ready if engine is not None), None)

    @property
    def example(self) -> str:
        """A JSON body that the model answers; "" where its handler says none."""
        return next((replica.example for replica in self.replicas if replica.example), "")

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
        )

    def answered(self, status: int, duration_s: float) -> None:
        """Count a request that has ended, `duration_s` seconds after its last byte arrived."""
        self.tally = counted(self.tally, status, duration_s)

    def changed(self) -> None:
        """Apply a change of a worker's state to metrics, pool and `settled`, and call `on_change`."""
        for gone in [one for one in self.spares if one.state is WorkerState.FAILED]:
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
        """A worker that loads tells how far it is."""
        self._on_progress(self, status)

    def restarted(self) -> None:
        """A worker that ended by itself is started again."""
        self.metrics.restarts.inc()

    @property
    def _all(self) -> list[Replica]:
        """The workers, and those that may be ending."""
        return [*self.workers, *self._removed]

    def _adapt(self) -> None:
        """Start and end spare workers, as the load says, and see again in time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._adapts or self._being_scaled or self._scaling.fixed:
            return
        now_s, (waiting, since_s) = time.monotonic(), self.pool.waiting
        decision = self._scaling.decide(now_s, waiting, since_s, [self._load_of(one) for one in self._able])
        for device in decision.grow:
            one = self._replica(on_device(self.config, device), spare=True)
            log.info("worker %s is added: %d requests wait", one.name, waiting, extra=self.log_extra)
            self.spares.append(one)
            one.start()
        for one in [one for one in self.spares if one.name in decision.shrink]:
            log.info("worker %s goes: it has nothing to do", one.name, extra=self.log_extra)
            self._withdraw([one])
            leaving = asyncio.create_task(self._let_go([one], None))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        self._count(Counter(replica.state for replica in self._all))
        if decision.again_s is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, decision.again_s - now_s), self._adapt)

    @property
    def _able(self) -> list[Replica]:
        """The workers that can answer, or will."""
        return [one for one in self.workers if one.state in (WorkerState.READY, WorkerState.STARTING)]

    def _load_of(self, one: Replica) -> WorkerLoad:
        ready, idle_since_s = one.state is WorkerState.READY, self.pool.idle_since(one)
        return WorkerLoad(one.name, one.device, one.spare, ready, idle_since_s)

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
        """Count these no longer among the workers that there should be."""
        self.replicas = [one for one in self.replicas if one not in replicas]
        self.spares = [one for one in self.spares if one not in replicas]
        self._removed += replicas

    async def _let_go(self, replicas: Sequence[Replica], drain_timeout_s: float | None) -> None:
        """End workers that have been withdrawn, once their calls are answered."""
        await asyncio.gather(*(replica.retire(drain_timeout_s) for replica in replicas))
        self._removed = [one for one in self._removed if one not in replicas]
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


def counted(tally: RequestCounts, status: int, duration_s: float) -> RequestCounts:
    """`tally` with one more answer of this status, which has ended just now."""
    if status < 400:
        return replace(
            tally, succeeded=tally.succeeded + 1, succeeded_s=tally.succeeded_s + duration_s, last_s=time.time()
        )
    return replace(tally, failed=tally.failed + 1, failed_s=tally.failed_s + duration_s, last_s=time.time())
