"""Loads models for requests, and unloads those that are idle, or longest unused where another needs their memory.

Runs in the front end's event loop. An unloaded model stays registered. A model with a request that runs, or waits, is
never unloaded, and neither is one that an operation is under way on.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final, Protocol

from ....config import ModelConfig, is_remote
from ....core.errors import OverloadedError, ServingError, UnavailableError
from ....dialects.shared.views import ModelStatus
from ..operations import Key
from ..served_model import ServedModel
from . import memory
from .clock import Clock, SystemClock
from .entry import Entry

log = logging.getLogger(__name__)

#: Why a model was unloaded, in the log and the metrics.
IDLE: Final = "idle"
MEMORY: Final = "memory"
REQUEST: Final = "request"
#: 292 years, Go's longest duration. A longer time is for ever: dates and timers end somewhere.
_LONGEST_S: Final = 2**63 / 1e9


class Loader(Protocol):
    """Loads and unloads registered models, one operation on a model after the other."""

    @property
    def running(self) -> Sequence[ServedModel]:
        """All instances that may have workers."""
        ...

    def current(self, key: Key) -> ServedModel:
        """The model's present instance. Raises ModelNotFoundError."""
        ...

    def busy(self, key: Key) -> bool:
        """Whether an operation on the model is under way, or about to be."""
        ...

    def bring(self, key: Key) -> asyncio.Task[ServedModel]:
        """Start the workers of a model that has none; raises from the task what keeps it from being loaded."""
        ...

    def release(self, key: Key, why: str, still: Callable[[], bool] = lambda: True) -> asyncio.Task[bool]:
        """Unload a model, unless it has become wrong to do so; whether it was done."""
        ...


class Residence:
    """Which of a server's models have workers.

    Args:
        budget_bytes: the memory that all of them may have together; None: any amount.
        estimate, measure: see `memory`; called in threads.
    """

    def __init__(
        self,
        loader: Loader,
        budget_bytes: int | None = None,
        *,
        clock: Clock | None = None,
        estimate: Callable[[ModelConfig], int] = memory.estimated_bytes,
        measure: Callable[[Collection[int]], Mapping[int, int]] = memory.measured_bytes,
    ) -> None:
        self._loader = loader
        self._budget_bytes = budget_bytes
        self._clock = clock or SystemClock()
        self._estimate = estimate
        self._measure = measure
        self._entries: dict[Key, Entry] = {}
        self._admitting = asyncio.Lock()
        self._changed = asyncio.Event()
        self._measuring: asyncio.Future[Mapping[Key, int]] | None = None

    # ------------------------------------------------------------------------------------ for requests

    def absent(self, model: ServedModel) -> bool:
        """Whether a request has to wait, in `use`, until the model is loaded."""
        if model.unloaded:
            return True
        entry = self._entries.get(_key(model))
        return entry is not None and entry.loading is not None

    def stay(self, model: ServedModel, held: ExitStack) -> None:
        """Have a model that is loaded stay so until `held` is closed."""
        if (entry := self._entries.get(_key(model))) is not None:
            held.enter_context(self._waiting(_key(model), entry))

    async def use(self, model: ServedModel, held: ExitStack, timeout_s: float | None = None) -> ServedModel:
        """The instance that answers a request, once the model is loaded. It stays until `held` is closed.

        Args:
            timeout_s: how long the request may wait.

        Raises:
            UnavailableError: the model does not load, or not within that time. The next request tries again.
            OverloadedError: as many requests wait for it as its queue takes.
            ModelNotFoundError: it has been unregistered meanwhile.
        """
        key, most = _key(model), model.config.serving.job_queue_size
        if (entry := self._entries.get(key)) is None:
            return self._loader.current(key)
        if entry.waiting >= most:
            raise OverloadedError(f"model {key[0]!r}: {most} requests wait until it is loaded, try again later")
        held.enter_context(self._waiting(key, entry))
        try:
            async with asyncio.timeout(timeout_s):
                return await self._loaded(key, entry)
        except TimeoutError:
            why = f"model {key[0]!r} is still being loaded after {timeout_s:g} s, which is the request's deadline"
            raise UnavailableError(why) from None

    def keep(self, model: ServedModel, idle_s: float) -> None:
        """Unload the model after so many seconds of idleness (`math.inf`: never), until it is unloaded."""
        if (entry := self._entries.get(_key(model))) is None:
            return
        entry.keep_alive_s = _bounded(idle_s)
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
        self._plan(_key(model))

    # ------------------------------------------------------------------------------------ for the registry

    def add(self, key: Key) -> None:
        """A model is registered."""
        self._entries[key] = Entry(used_s=self._clock.now())

    async def admit(self, key: Key, config: ModelConfig, *, evict: bool = True) -> bool:
        """Set memory aside for a model whose workers are about to be started; whether there is any.

        Args:
            evict: whether to unload others for it, and wait for those that are in use.

        Raises:
            UnavailableError: it needs more than there may be, or the others stay in use.
        """
        if self._budget_bytes is None or is_remote(config):
            return True
        entry, workers = self._entries[key], memory.least_workers(config)
        if not entry.need_bytes:
            entry.needs(await asyncio.to_thread(self._estimate, config), workers)
        entry.needs(entry.bytes_of(workers), workers)
        return await self._reserved(key, config, entry.need_bytes, f"model {config.label!r} needs", evict=evict)

    async def admit_workers(self, model: ServedModel, count: int) -> None:
        """Set memory aside for so many further workers of a loaded model, as `admit` does for all of one.

        Raises:
            UnavailableError: as `admit`.
        """
        if self._budget_bytes is None or not count:
            return
        key = _key(model)
        await self._held()
        size = self._entries[key].bytes_of(count)
        more = "another worker needs" if count == 1 else f"{count} more workers need"
        await self._reserved(key, model.config, size, f"model {key[0]!r}: {more}")

    @contextlib.asynccontextmanager
    async def growing(self, model: ServedModel) -> AsyncIterator[bool]:
        """Set memory aside for a spare worker while it loads, in this block; whether there is any.

        Nothing is unloaded for it: its model answers without it too.
        """
        key = _key(model)
        if self._budget_bytes is None or (entry := self._entries.get(key)) is None:
            yield self._budget_bytes is None
            return
        async with self._admitting:
            held = await self._held()
            has, more = held.get(key, 0), entry.bytes_of(1)
            fits = sum(held.values()) + more <= self._budget_bytes
            if fits:
                entry.growing_bytes = has + more
        try:
            yield fits
        finally:
            if fits:
                entry.growing_bytes = 0
                self._changed.set()

    @contextlib.contextmanager
    def loading(self, key: Key) -> Iterator[None]:
        """An operation loads an unloaded model in this block: its requests wait meanwhile, and get its error."""
        entry = self._entries.get(key)
        if entry is None or entry.loading is not None:  # it is gone, or requests wait for what this is a part of
            yield
            return
        entry.loading = loaded = asyncio.get_running_loop().create_future()
        try:
            yield
        except ServingError as error:
            loaded.set_exception(error)
            loaded.exception()  # else asyncio logs that nobody has looked at it, where no request waits
            raise
        finally:
            entry.loading = None
            if not loaded.done():
                loaded.set_result(None)

    def unused(self, model: ServedModel) -> None:
        """The last call has left an instance."""
        if (entry := self._entries.get(_key(model))) is not None:
            entry.used_s = self._clock.now()
            self._plan(_key(model))

    def changed(self, key: Key) -> None:
        """An operation on a model has ended."""
        entry = self._entries.get(key)
        if entry is not None and not self._loader.busy(key):
            entry.reserved_bytes = 0
        self._plan(key)

    def unloaded(self, key: Key) -> None:
        """The model has been unloaded: what requests have said of its time is over."""
        if (entry := self._entries.get(key)) is not None:
            entry.keep_alive_s = None

    def forget(self, key: Key) -> None:
        """The model has been unregistered."""
        entry = self._entries.pop(key, None)
        if entry is not None and entry.timer is not None:
            entry.timer.cancel()
        self._changed.set()

    def close(self) -> None:
        """Unload nothing any more."""
        for key in list(self._entries):
            self.forget(key)

    # ------------------------------------------------------------------------------------ for pages

    def shown(self, status: ModelStatus) -> ModelStatus:
        """A model's status, with its memory and the end of its time."""
        key = status.config.name, status.config.version
        entry = self._entries.get(key)
        if entry is None:
            return status
        idle_s = expires_s = None
        if status.ready:
            idle_s = self._clock.now() - entry.used_s if self._loader.current(key).pool.unused else None
            left_s = self._idle_s(entry, status.config) - (idle_s or 0.0)
            expires_s = time.time() + left_s if left_s < math.inf else None
        return replace(status, memory_bytes=entry.need_bytes, idle_s=idle_s, expires_s=expires_s)

    async def measure(self) -> None:
        """Measure the memory of the loaded models, for `shown`: all processes are read, for all who ask meanwhile."""
        if self._measuring is None or self._measuring.done():
            self._measuring = asyncio.ensure_future(self._held())
        await asyncio.shield(self._measuring)

    # ------------------------------------------------------------------------------------ inside

    @contextlib.contextmanager
    def _waiting(self, key: Key, entry: Entry) -> Iterator[None]:
        """A request is on its way to the model's pool in this block."""
        entry.waiting += 1
        try:
            yield
        finally:
            entry.waiting -= 1
            self._plan(key)

    async def _reserved(self, key: Key, config: ModelConfig, size: int, what: str, *, evict: bool = True) -> bool:
        """Set memory aside beside what the model has; whether there is any. `what` needs it: for errors."""
        assert self._budget_bytes is not None
        wanted, allowed = f"{what} about {_mebibytes(size)}", f"memory_budget is {_mebibytes(self._budget_bytes)}"
        if size > self._budget_bytes and evict:
            raise UnavailableError(f"{wanted}, and {allowed}")
        try:
            async with asyncio.timeout(config.option.model_loading_timeout), self._admitting:
                while not await self._reserve(key, size):
                    if not evict:
                        return False
                    if not await self._make_room(key):
                        raise UnavailableError(f"{wanted} beside its present workers, and {allowed}")
        except TimeoutError:
            raise UnavailableError(f"{wanted}, {allowed}, and the models that are loaded are in use") from None
        return True

    async def _loaded(self, key: Key, entry: Entry) -> ServedModel:
        while True:
            model = self._loader.current(key)
            if entry.loading is None:
                if not model.unloaded:
                    return model
                entry.loading = self._loader.bring(key)
                entry.loading.add_done_callback(functools.partial(_done_loading, entry))
            loading = entry.loading
            await asyncio.wait({loading})  # it goes on even if this request does not
            if isinstance(error := loading.exception(), ServingError):
                self._loader.current(key)
                raise UnavailableError(error.message)  # one of its own for each request: they collect tracebacks
            loading.result()

    async def _reserve(self, key: Key, size: int) -> bool:
        """Set the memory aside, if there is enough."""
        self._changed.clear()
        held = await self._held()
        assert self._budget_bytes is not None
        if sum(held.values()) + size > self._budget_bytes:
            return False
        self._entries[key].reserved_bytes = held.get(key, 0) + size
        return True

    async def _make_room(self, key: Key) -> bool:
        """Unload the model whose last request is longest ago, or wait until one may be. False: there is no other."""
        others = [other for other in self._entries if other != key and self._holds(other)]
        free = [other for other in others if self._may_go(other)]
        if not others:
            return False
        if not free:
            await self._changed.wait()
            return True
        first = min(
            free, key=lambda other: (self._entries[other].keep_alive_s == math.inf, self._entries[other].used_s)
        )
        await self._loader.release(first, MEMORY, functools.partial(self._idle, first))
        return True

    def _holds(self, key: Key) -> bool:
        """Whether a model has memory, or memory is set aside for it."""
        running = any(_key(model) == key for model in self._loader.running)
        return running or self._entries[key].reserved_bytes > 0

    async def _held(self) -> Mapping[Key, int]:
        """The memory that each model has, measured where that is possible, or that is set aside for it."""
        # Before the measurement: while it takes place, a model that has been starting may be ready.
        held: dict[Key, int] = {
            key: max(entry.reserved_bytes, entry.growing_bytes) for key, entry in self._entries.items()
        }
        workers: dict[Key, list[int]] = {}
        devices: dict[Key, int] = {}
        counts: dict[Key, int] = {}
        for model in self._loader.running:
            counts[_key(model)] = counts.get(_key(model), 0) + len(model.workers.able)
            ready = [worker for worker in model.workers if worker.pid is not None]
            workers.setdefault(_key(model), []).extend(worker.pid for worker in ready if worker.pid is not None)
            device_bytes = sum(memory.device_bytes(worker.info.engine) for worker in ready)
            devices[_key(model)] = devices.get(_key(model), 0) + device_bytes
        measured = await asyncio.to_thread(self._measure, [pid for pids in workers.values() for pid in pids])
        for key, pids in workers.items():
            entry = self._entries.get(key)  # None: its last requests are being answered
            has = sum(measured.get(pid, 0) for pid in pids) + devices[key]
            if entry is not None and has and pids and not held.get(key):  # else it is still growing
                entry.needs(has, len(pids))
            held[key] = has if entry is None else max(held.get(key, 0), has or entry.bytes_of(counts[key]))
        return held

    def _may_go(self, key: Key) -> bool:
        """Whether a model may be unloaded now: it is idle, and no operation on it is under way."""
        return not self._loader.busy(key) and self._idle(key)

    def _idle(self, key: Key) -> bool:
        """Whether a model is loaded, and no request runs or waits."""
        entry = self._entries.get(key)
        if entry is None or entry.waiting:
            return False
        model = self._loader.current(key)
        return model.ready and not model.unloaded and model.pool.unused

    def _idle_s(self, entry: Entry, config: ModelConfig) -> float:
        """How long the model may be idle."""
        if entry.keep_alive_s is not None:
            return entry.keep_alive_s
        return math.inf if config.option.idle_unload is None else _bounded(config.option.idle_unload)

    def _plan(self, key: Key) -> None:
        """Have an idle model unloaded in time. A timer that is set stays: it looks again at its end."""
        self._changed.set()
        entry = self._entries.get(key)
        if entry is None or not self._may_go(key):
            return
        model = self._loader.current(key)
        if entry.instance is not model:  # it has just been loaded
            entry.instance, entry.used_s = model, self._clock.now()
        idle_s = self._idle_s(entry, model.config)
        if entry.timer is None and idle_s < math.inf:
            entry.timer = self._clock.call_at(entry.used_s + idle_s, functools.partial(self._due, key))

    def _due(self, key: Key) -> None:
        entry = self._entries.get(key)
        if entry is None:
            return
        entry.timer = None
        if not self._loader.busy(key) and self._expired(key):
            self._loader.release(key, IDLE, functools.partial(self._expired, key))
        else:
            self._plan(key)

    def _expired(self, key: Key) -> bool:
        """Whether a model has been idle for its time."""
        if not self._idle(key):
            return False
        entry = self._entries[key]
        idle_s = self._idle_s(entry, self._loader.current(key).config)
        return self._clock.now() >= entry.used_s + idle_s


def _key(model: ServedModel) -> Key:
    return model.config.name, model.config.version


def _done_loading(entry: Entry, loading: asyncio.Future[Any]) -> None:
    entry.loading = None


def _bounded(idle_s: float) -> float:
    """A time of idleness, `math.inf` for ever."""
    return math.inf if idle_s > _LONGEST_S else idle_s


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
