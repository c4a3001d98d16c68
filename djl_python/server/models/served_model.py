"""A served model: its pool, its health, and what it shows of its workers.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import msgspec

from ...config import ModelConfig, is_remote
from ...core.engine_info import EngineInfo
from ...core.errors import ModelLoadError, UnavailableError
from ...dialects.shared.views import ModelStatus, RequestCounts
from ...ipc.protocol import Status, WorkerInfo
from ..metrics.model_metrics import ModelMetrics
from .adapters.adapter import Adapter, sources_of
from .adapters.model import ModelAdapters
from .health import Health, health_of, setback_of
from .placement import Placement
from .pool.pool import Pool
from .replica import LOADED
from .replica_set import ReplicaSet
from .routing.router import Router, Routing
from .scaling.autoscaler import Autoscaler
from .scaling.scaling import with_workers


class ServedModel:
    """One instance of a model, with its workers and its pool.

    `on_progress` is called with each loading message, `on_change` when a worker's state has changed, `on_unused` when
    the last call has left its pool.

    Attributes:
        workers: its workers, without those that scaling down has removed.
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
        self.workers = ReplicaSet(
            self.pool,
            metrics,
            placement,
            self.adapters,
            turns=turns,
            on_change=self.changed,
            on_progress=lambda status: on_progress(self, status),
        )
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
        self._autoscaler = Autoscaler(
            config, self.workers, self.pool, None if growing is None else lambda: growing(self)
        )
        self._broken = self._not_loaded = ""
        self._was_ready = False
        self._known = WorkerInfo()  # of an earlier instance's workers

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
        made.workers.avoid(self.workers.names)
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
        self.started_s = time.time()
        self.metrics.loaded(True)
        self._autoscaler.enabled = most is None
        self.workers.start(self.config, most)

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
        """Wait until every worker that it should always have has been ready.

        Raises:
            ModelLoadError: one has failed to load, or was stopped before it had.
        """
        await self.workers.all_ready()

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
        before, self.config = self.config, with_workers(self.config, least, most)
        with self._autoscaler.paused():
            gone, failure = await self.workers.resize(self.config)
            if failure is not None:
                self.config = before
            else:
                self._autoscaler.follow(self.config)
            await self.workers.remove(gone, drain_timeout_s)
            if failure is not None:
                raise failure

    def lacking(self, least: int) -> int:
        """How many workers have to be added for so many on each device."""
        return self.workers.lacking(with_workers(self.config, least, least))

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
        self._autoscaler.stop()
        self.pool.refusal = reason
        self.pool.fail_all(UnavailableError(self.pool.refusal), "shutdown")
        await self.workers.stop()
        self.settled.set()  # loading need not be waited for any more

    @property
    def ready(self) -> bool:
        """Whether a worker can answer now."""
        return bool(self.workers.ready)

    @property
    def health(self) -> Health:
        """The model's health, from the states of its workers."""
        if self._broken:
            return Health.FAILED
        if self.unloaded:
            return Health.UNLOADED
        return health_of(self.workers.always, ready=self.ready, was_ready=self._was_ready)

    @property
    def failure(self) -> str:
        """Why the model, or one of its workers, has failed; "" if none has."""
        return (
            self._broken
            or self._not_loaded
            or next((replica.failure for replica in self.workers.always if replica.failure), "")
        )

    @property
    def setback(self) -> str:
        """The message about workers that restart again and again without success; "" if there are none."""
        return setback_of(self.workers.always) if self._was_ready else ""

    @property
    def lost(self) -> bool:
        """Whether it has served, and its machine has long lacked what every worker needs to restart."""
        always = self.workers.always
        return bool(always) and not self.ready and all(replica.restarts.lost for replica in always)

    @property
    def no_memory(self) -> bool:
        """Whether that is why it has failed."""
        return any(replica.failure and replica.no_memory for replica in self.workers.always)

    @property
    def engine(self) -> EngineInfo | None:
        """The engine of the first ready worker that has one; of an unloaded model, the one that it had."""
        if self.unloaded:
            return self._known.engine
        engines = (replica.info.engine for replica in self.workers.ready)
        return next((engine for engine in engines if engine is not None), None)

    @property
    def info(self) -> WorkerInfo:
        """What the first worker that has loaded says of itself; before that, what is known of earlier ones."""
        unknown = WorkerInfo()
        return next((replica.info for replica in self.workers.always if replica.info != unknown), self._known)

    @property
    def status(self) -> ModelStatus:
        """The model as pages see it."""
        return ModelStatus(
            config=self.config,
            ready=self.ready,
            failed=self.health is Health.FAILED,
            workers=len(self.workers.ready),
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
        for device in self.workers.drop_failed_spares():
            self._autoscaler.failed(device)
        self._was_ready = self._was_ready or self.ready
        self.workers.count()
        if self.health is Health.FAILED:
            self.pool.refusal = f"model {self.config.name!r} has failed"
            self.pool.fail_all(UnavailableError(self.pool.refusal), "worker_died")
        self._on_change(self)
        if self.health is not Health.PENDING:
            self.settled.set()
        self._adapt()

    def _adapt(self) -> None:
        self._autoscaler.adapt()

    def _show_adapters(self, without: str = "") -> None:
        """Have requests find the adapters that there are."""
        sources = sources_of(self.adapters.wanted)
        sources.pop(without, None)
        self.config = msgspec.structs.replace(self.config, adapters=sources)
