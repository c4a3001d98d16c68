"""A served model: its workers, its pool, and its health.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from ...config import ModelConfig, devices_of
from ...core.errors import UnavailableError
from ...core.types import EngineInfo
from ...dialects.shared.base import ModelStatus, RequestCounts
from ...ipc.protocol import Status
from ..metrics import ModelMetrics
from .pool import Pool
from .replica import Replica, WorkerState

WORKER_MODULE: Final = "djl_python.worker"


class Health(enum.StrEnum):
    """The health of a model, in DJL's words."""

    PENDING = "PENDING"  # loading for the first time
    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"  # was ready, has fewer ready workers than it should
    FAILED = "FAILED"


class ServedModel:
    """A model with its workers and its pool.

    `on_progress` is called with each loading message, `on_change` when a worker's state has changed.

    Attributes:
        registered_s: Unix time of its registration.
        settled: set once the model has loaded, failed to load, or been stopped.
        tally: counts of its requests by outcome.
    """

    def __init__(
        self,
        config: ModelConfig,
        metrics: ModelMetrics,
        *,
        worker_module: str = WORKER_MODULE,
        turns: asyncio.Semaphore | None = None,
        on_progress: Callable[[ServedModel, Status], None] = lambda _model, _status: None,
        on_change: Callable[[ServedModel], None] = lambda _model: None,
        broken: str = "",
    ) -> None:
        """Nothing is started yet.

        Args:
            turns: limits how many workers load at a time, of all models that have it; None: no limit.
            broken: why loading can't even be tried: the model is FAILED from the start, without workers.
        """
        self.config = config
        self.metrics = metrics
        self.worker_module = worker_module
        self.turns = turns
        self.on_progress = on_progress
        self.log_extra = {"model": config.label}
        self.pool = Pool(config.name, config.serving.job_queue_size, config.option.predict_timeout, metrics)
        self.replicas = [
            Replica(self, index, replica) for index, replica in enumerate([] if broken else placements(config))
        ]
        self.registered_s = time.time()
        self.settled = asyncio.Event()
        self.tally = RequestCounts()
        self._broken = broken
        self._on_change = on_change
        self._was_ready = False
        self._superseded = False
        self._tasks: list[asyncio.Task[None]] = []

    def successor(self) -> ServedModel:
        """A new instance of the model, not started yet; only it reports the numbers of workers from now on."""
        self._superseded = True
        return ServedModel(
            self.config,
            self.metrics,
            worker_module=self.worker_module,
            turns=self.turns,
            on_progress=self.on_progress,
            on_change=self._on_change,
            broken=self._broken,
        )

    def start(self) -> None:
        """Start the workers; `on_change` reports their states."""
        self.changed()
        self._tasks = [asyncio.create_task(replica.run()) for replica in self.replicas]

    async def stop(self, reason: str = "the server is shutting down") -> None:
        """End the workers. Calls that are still waiting or in flight fail first, with `reason`."""
        self.pool.refusal = reason
        self.pool.fail_all(UnavailableError(self.pool.refusal), "shutdown")
        await asyncio.gather(*(replica.stop() for replica in self.replicas))
        await asyncio.gather(*self._tasks)
        self.settled.set()  # loading need not be waited for any more

    def kill(self) -> None:
        """Kill the workers at once."""
        for replica in self.replicas:
            replica.kill()

    @property
    def ready(self) -> bool:
        """Whether a worker can answer now."""
        return any(replica.state is WorkerState.READY for replica in self.replicas)

    @property
    def health(self) -> Health:
        """The model's health, from the states of its workers."""
        if self._broken:
            return Health.FAILED
        states = {replica.state for replica in self.replicas}
        if states == {WorkerState.READY}:
            return Health.HEALTHY
        if states == {WorkerState.FAILED}:
            return Health.FAILED
        return Health.UNHEALTHY if self._was_ready else Health.PENDING

    @property
    def failure(self) -> str:
        """Why the model, or one of its workers, has failed; "" if none has."""
        return self._broken or next((replica.failure for replica in self.replicas if replica.failure), "")

    @property
    def engine(self) -> EngineInfo | None:
        """What runs the model, in the first worker that is ready and has an engine."""
        ready = (replica.engine for replica in self.replicas if replica.state is WorkerState.READY)
        return next((engine for engine in ready if engine is not None), None)

    @property
    def status(self) -> ModelStatus:
        """The model as pages see it."""
        return ModelStatus(
            config=self.config,
            ready=self.ready,
            failed=self.health is Health.FAILED,
            workers=sum(replica.state is WorkerState.READY for replica in self.replicas),
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
        self._was_ready = self._was_ready or self.ready
        states = [replica.state for replica in self.replicas]
        if not self._superseded:
            counts: dict[str, int] = {
                state: states.count(state) for state in WorkerState if state is not WorkerState.STOPPED
            }
            self.metrics.workers(counts)
        if self.health is Health.FAILED:
            self.pool.refusal = f"model {self.config.name!r} has failed"
            self.pool.fail_all(UnavailableError(self.pool.refusal), "worker_died")
        self._on_change(self)
        if self.health is not Health.PENDING:
            self.settled.set()


def counted(tally: RequestCounts, status: int, duration_s: float) -> RequestCounts:
    """`tally` with one more answer of this status, which has ended just now."""
    if status < 400:
        return replace(
            tally, succeeded=tally.succeeded + 1, succeeded_s=tally.succeeded_s + duration_s, last_s=time.time()
        )
    return replace(tally, failed=tally.failed + 1, failed_s=tally.failed_s + duration_s, last_s=time.time())


def placements(config: ModelConfig) -> list[ModelConfig]:
    """One configuration for each worker: `minWorkers` of them for every device that is named."""
    return [
        msgspec.structs.replace(config, option=msgspec.structs.replace(config.option, device=device))
        for device in devices_of(config)
        for _ in range(config.serving.min_workers)
    ]
