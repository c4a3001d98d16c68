"""Starts spare workers of a model while calls wait, and ends those that are idle, as `Scaling` decides.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager

from ....config import ModelConfig
from ..pool.pool import Pool
from ..replica import Replica, WorkerState
from ..replica_set import ReplicaSet
from .scaling import WorkerLoad, on_device, scaling_of

log = logging.getLogger(__name__)


class Autoscaler:
    """Keeps the number of a model's workers between its bounds as its load says.

    Args:
        config: the model's, with the bounds.
        growing: entered while a spare worker loads; says whether there is memory for it. None: there is.

    Attributes:
        enabled: whether the number follows the load.
    """

    def __init__(
        self,
        config: ModelConfig,
        workers: ReplicaSet,
        pool: Pool,
        growing: Callable[[], AbstractAsyncContextManager[bool]] | None,
    ) -> None:
        self.enabled = False
        self._config = config
        self._scaling = scaling_of(config)
        self._workers = workers
        self._pool = pool
        self._growing = growing
        self._growths: dict[str, asyncio.Task[None]] = {}  # by device
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._log_extra = {"model": config.label}

    def follow(self, config: ModelConfig) -> None:
        """Keep to the bounds of this configuration from now on."""
        self._config, self._scaling = config, scaling_of(config)

    def failed(self, device: str) -> None:
        """A spare worker has failed on this device."""
        self._scaling.failed(device, time.monotonic())

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Have the number stay as it is in this block, which changes it by itself."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False
            self.adapt()

    def stop(self) -> None:
        """Start and end no worker any more."""
        self.enabled = False
        self.adapt()
        for growth in self._growths.values():
            growth.cancel()

    def adapt(self) -> None:
        """Start and end spare workers according to the load, and decide again in time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._may_adapt or self._scaling.fixed:
            return
        now_s, (waiting, since_s) = time.monotonic(), self._pool.waiting
        decision = self._scaling.decide(
            now_s, waiting, since_s, [self._load_of(worker) for worker in self._workers.able]
        )
        for device in decision.grow:
            if self._growing is None:
                self._add_spare(device)
            elif device not in self._growths:
                self._growths[device] = asyncio.create_task(self._grow(self._growing, device))
        for spare in [spare for spare in self._workers.spares if spare.name in decision.shrink]:
            log.info("worker %s goes: it has nothing to do", spare.name, extra=self._log_extra)
            self._workers.let_go(spare)
        if decision.again_s is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, decision.again_s - now_s), self.adapt)

    @property
    def _may_adapt(self) -> bool:
        return self.enabled and not self._paused

    def _add_spare(self, device: str) -> Replica:
        spare = self._workers.add_spare(on_device(self._config, device))
        log.info("worker %s is added: %d requests wait", spare.name, self._pool.waiting[0], extra=self._log_extra)
        return spare

    async def _grow(self, growing: Callable[[], AbstractAsyncContextManager[bool]], device: str) -> None:
        """Start a spare worker, if there is memory for it; otherwise, none is tried for a while."""
        try:
            async with growing() as there_is_room:
                if not there_is_room:
                    log.info("no worker is added: memory_budget leaves no room for one", extra=self._log_extra)
                    self.failed(device)
                elif self._may_adapt:
                    await self._add_spare(device).settled.wait()
        finally:
            del self._growths[device]
            self.adapt()

    def _load_of(self, worker: Replica) -> WorkerLoad:
        ready, seen = worker.state is WorkerState.READY, self._pool.workers
        idle_since_s, crowded_since_s = seen.idle_since(worker), seen.crowded_since(worker)
        return WorkerLoad(worker.name, worker.device, worker.spare, ready, idle_since_s, crowded_since_s)
