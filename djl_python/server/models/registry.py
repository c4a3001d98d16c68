"""Models come, change and go while the server runs: register, scale, reload, unregister, and what is there now.

Runs in the front end's event loop. What takes long in reading a model's configuration (downloads, archives, files) is
done in other threads.

Two operations on one model (a name and a version) take place one after the other, in the order in which they were
begun; those on different models side by side. `unregister` alone does not wait for what was begun before: it ends it.
A request that has been admitted is answered by the workers of the instance that admitted it, whatever becomes of the
model meanwhile, unless that takes longer than the server's `drain_timeout`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...config import ModelConfig, ModelSpec
from ...core.errors import (
    ConfigError,
    ModelConflictError,
    ModelLoadError,
    ModelNotFoundError,
    ParameterError,
    ServingError,
    UnavailableError,
)
from ...ipc.protocol import Status
from ..metrics import Metrics
from .description import ModelDescription, described
from .operations import Key, Operations, unless
from .placement import Placement
from .served_model import Health, ServedModel, with_workers
from .table import ModelTable

T = TypeVar("T")


@dataclass(eq=False)
class _Registration:
    """A model from `register` to `unregister`. `workers`: how many were asked for at run time, on each device."""

    spec: ModelSpec
    model: ServedModel
    workers: int | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def key(self) -> Key:
        return self.spec.name, self.spec.version

    async def unless_ended(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which is cancelled when the model is unregistered. Raises ModelLoadError then."""
        name = self.spec.name
        gone = ModelLoadError(f"model {name!r} was unregistered meanwhile, or the server is shutting down")
        return await unless(self.ended, work, gone)


class ModelRegistry:
    """The models of a server.

    `register`, `scale`, `reload` and `unregister` check what they are asked for at once, and raise; the task that they
    return is done when that has happened. Nobody needs to await it: `describe` shows how far it is, and why it failed.

    Args:
        read: reads a model's configuration, in a thread, after it has fetched the model where that is needed; raises
            ConfigError.
        turns: limits how many workers load at a time; None: no limit.
        drain_timeout_s: how many seconds the requests to workers that are removed get to finish.
        on_progress: called with each message of a worker that loads.
        on_change: called when a worker's state has changed.

    Attributes:
        models: the registered models; it is changed here only.
    """

    def __init__(
        self,
        metrics: Metrics,
        placement: Placement,
        read: Callable[[ModelSpec], ModelConfig],
        *,
        default_model: str = "",
        turns: asyncio.Semaphore | None = None,
        drain_timeout_s: float = 30.0,
        on_progress: Callable[[ServedModel, Status], None] = lambda _model, _status: None,
        on_change: Callable[[ServedModel], None] = lambda _model: None,
    ) -> None:
        self.models = ModelTable(default_model)
        self._metrics = metrics
        self._placement = placement
        self._read = read
        self._turns = turns
        self._drain_timeout_s = drain_timeout_s
        self._on_progress = on_progress
        self._on_change = on_change
        self._registrations: dict[Key, _Registration] = {}
        self._unloaded: dict[str, list[_Registration]] = {}
        self._running: list[ServedModel] = []
        self._operations = Operations()
        self._closed = False

    # ------------------------------------------------------------------------------------ what is there

    @property
    def running(self) -> Sequence[ServedModel]:
        """All models that may have workers: also those whose last requests finish, and those that will take over."""
        return list(self._running)

    @property
    def unloaded(self) -> Sequence[ServedModel]:
        """The models that `unload` has taken out of service, and that have not been registered again."""
        return [gone.model for versions in self._unloaded.values() for gone in versions]

    def describe(self, name: str, version: str | None = None) -> Sequence[ModelDescription]:
        """A model's versions, in order of registration, or one of them.

        Raises:
            ModelNotFoundError: there is no such model.
        """
        return [described(registration.spec, registration.model) for registration in self._find(name, version)]

    # ------------------------------------------------------------------------------------ operations

    def register(self, spec: ModelSpec, known: ModelConfig | ConfigError | None = None) -> asyncio.Task[ServedModel]:
        """Add a model: read its configuration and start its workers. The task is done when the first can answer.

        A model that can't be read, or does not load, stays registered, as failed, until it is reloaded or unregistered.

        Args:
            known: what reading it has given, or why it can't be read; None: it is read now.

        Raises:
            ModelConflictError: this version of the model is registered already.
            UnavailableError: the server is shutting down.
            ConfigError, ModelLoadError: from the task.
        """
        self._check_open()
        key = spec.name, spec.version
        if key in self._registrations:
            version = f" version {spec.version}" if spec.version else ""
            raise ModelConflictError(f"model {spec.name!r}{version} is registered already")
        if isinstance(known, ModelConfig):
            config = known
        else:
            config = ModelConfig(name=spec.name, version=spec.version, url=spec.url)
        made = ServedModel(
            config,
            self._metrics.model(*key),
            self._placement,
            turns=self._turns,
            on_progress=self._on_progress,
            on_change=self._on_change,
        )
        registration = self._registrations[key] = _Registration(spec, made)
        self._forget_unloaded(key)
        self.models.put(made)
        return self._operations.begin(registration.key, self._register, registration, known)

    def reload(self, name: str, version: str = "", spec: ModelSpec | None = None) -> asyncio.Task[ServedModel]:
        """Read a model again, load it beside its present instance, and have that replaced once every worker is ready.

        The present instance then answers what it has admitted, and ends. If the new one can't be read or does not load,
        the present one stays, and the task raises the reason. One that has failed is replaced at once.

        Args:
            version: "" for the one that requests get that name no version.
            spec: where the model is now, under the same name and version; None: where it was.

        Raises:
            ModelNotFoundError: there is no such model.
            UnavailableError: the server is shutting down.
            ConfigError, ModelLoadError: from the task.
        """
        self._check_open()
        registration = self._select(name, version)
        assert spec is None or (spec.name, spec.version) == registration.key
        return self._operations.begin(registration.key, self._reload, registration, spec or registration.spec)

    def scale(
        self, name: str, version: str = "", *, min_workers: int, max_workers: int | None = None
    ) -> asyncio.Task[ServedModel]:
        """Have from `min_workers` to `max_workers` workers on each device: as many as now, if that is between the two.

        Holds until the model is unregistered, also when it is reloaded. The task is done when new workers are ready,
        and those that are removed have answered their calls. If a new one does not load, the number is what it was.

        Args:
            version: "" for the one that requests get that name no version.
            max_workers: None for `min_workers`.

        Raises:
            ModelNotFoundError: there is no such model.
            ParameterError: the numbers are not 1 <= min_workers <= max_workers.
            UnavailableError: the server is shutting down.
            ModelLoadError: from the task.
        """
        self._check_open()
        registration = self._select(name, version)
        if min_workers < 1:
            raise ParameterError(f"min_workers: expected at least 1, got {min_workers}", "min_workers")
        most = min_workers if max_workers is None else max_workers
        if most < min_workers:
            raise ParameterError(
                f"max_workers: expected at least min_workers ({min_workers}), got {most}", "max_workers"
            )
        return self._operations.begin(registration.key, self._scale, registration, min_workers, most)

    def unregister(self, name: str, version: str | None = None) -> asyncio.Task[None]:
        """Remove a model, or one version of it: requests do not find it from now on.

        What was begun with it ends with a ModelLoadError. The task is done when the requests that it has are answered,
        or have failed after `drain_timeout`, and its workers have ended.

        Raises:
            ModelNotFoundError: there is no such model.
        """
        return self._unregister(self._find(name, version))

    async def load(self, name: str) -> None:
        """Register every version of a model that `unload` has removed, and wait until each can answer.

        Versions that have failed are loaded again; versions that are registered otherwise are only waited for.

        Raises:
            ModelNotFoundError: the server does not know the model.
            ModelLoadError: a version does not load; it stays registered, as failed.
        """
        for gone in list(self._unloaded.get(name, ())):
            self.register(gone.spec)
        if not (versions := self.models.versions(name)):
            known = ", ".join([*self.models.names, *self._unloaded])
            raise ModelNotFoundError(f"there is no model {name!r} to load; the server knows {known or 'none'}")
        for model in versions:
            if model.health is Health.FAILED:
                self.reload(name, model.config.version)
        begin, registrations = self._operations.begin, self._find(name, None)
        waiting = [begin(one.key, self._wait_ready, one) for one in registrations]  # after what was begun above
        await asyncio.wait(waiting)
        for version in waiting:
            version.result()

    async def unload(self, name: str) -> None:
        """Unregister every version of a model, in such a way that `load` finds them again.

        Raises:
            ModelNotFoundError: the model is not registered.
        """
        if not self.models.versions(name):
            raise ModelNotFoundError(f"there is no model {name!r} to unload; {self.models.loaded}")
        registrations = self._find(name, None)
        self._unloaded.setdefault(name, []).extend(registrations)
        await self._unregister(registrations)

    async def close(self) -> None:
        """End everything: what was begun fails, and so do requests that are not answered yet."""
        self._closed = True
        for registration in self._registrations.values():
            registration.ended.set()
        await asyncio.gather(*(model.stop() for model in self.running))
        await self._operations.wait()

    # ------------------------------------------------------------------------------------ inside

    async def _register(self, registration: _Registration, known: ModelConfig | ConfigError | None) -> ServedModel:
        if not isinstance(known, ModelConfig):
            config = await self._config_of(registration, registration.spec, known)
            self._put(registration, registration.model.successor(config))
        return await self._load(registration)

    async def _reload(self, registration: _Registration, spec: ModelSpec) -> ServedModel:
        config = await self._config_of(registration, spec)
        old, new = registration.model, registration.model.successor(config)
        if old.health is Health.FAILED:
            registration.spec = spec
            self._put(registration, new)
            await self._stop(old, _reason(old))
            return await self._load(registration)
        self._start(new)
        try:
            await registration.unless_ended(new.loaded())
        except BaseException:
            await self._stop(new, _reason(new))
            raise
        registration.spec = spec
        self._put(registration, new)
        await self._retire(old)
        return new

    async def _scale(self, registration: _Registration, least: int, most: int) -> ServedModel:
        model = registration.model
        workers = min(max(model.config.serving.min_workers, least), most)
        await registration.unless_ended(model.scale(workers, self._drain_timeout_s))
        registration.workers = workers
        return model

    async def _wait_ready(self, registration: _Registration) -> None:
        await registration.unless_ended(registration.model.settled.wait())
        if not registration.model.ready:
            raise _not_loaded(registration.model)

    def _unregister(self, registrations: Sequence[_Registration]) -> asyncio.Task[None]:
        for registration in registrations:
            del self._registrations[registration.key]
            self.models.remove(registration.model)
            registration.ended.set()
        begin = self._operations.begin
        return self._operations.together([begin(one.key, self._end, one) for one in registrations])

    async def _end(self, registration: _Registration) -> None:
        await self._retire(registration.model)

    async def _config_of(
        self, registration: _Registration, spec: ModelSpec, known: ConfigError | None = None
    ) -> ModelConfig:
        """The model's configuration. Where it can't be read, a model that has no other is FAILED."""
        try:
            if known is not None:
                raise known
            config = await registration.unless_ended(asyncio.to_thread(self._read, spec))
        except BaseException as exc:
            if registration.model.health in (Health.PENDING, Health.FAILED) and not registration.ended.is_set():
                registration.model.fail(exc.message if isinstance(exc, ServingError) else repr(exc))
            raise
        return config if registration.workers is None else with_workers(config, registration.workers)

    async def _load(self, registration: _Registration) -> ServedModel:
        """Start a registered model, and wait until it can answer."""
        model = registration.model
        if not registration.ended.is_set():
            self._start(model)
        await registration.unless_ended(model.settled.wait())
        if model.health is Health.FAILED:
            raise _not_loaded(model)
        return model

    def _start(self, model: ServedModel) -> None:
        self._running.append(model)
        model.start()

    def _put(self, registration: _Registration, model: ServedModel) -> None:
        """Have requests answered by this instance from now on."""
        registration.model = model
        self.models.put(model)

    async def _retire(self, model: ServedModel) -> None:
        """Let an instance that gets no more requests answer those that it has, and end it."""
        with suppress(TimeoutError):  # `stop` fails the remaining requests
            async with asyncio.timeout(self._drain_timeout_s):
                await model.pool.wait_idle()
        await self._stop(model, _reason(model))

    async def _stop(self, model: ServedModel, reason: str) -> None:
        await model.stop(reason)
        if model in self._running:
            self._running.remove(model)

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the server is shutting down")

    def _select(self, name: str, version: str) -> _Registration:
        config = self.models.select(name, version).config
        return self._registrations[config.name, config.version]

    def _find(self, name: str, version: str | None) -> Sequence[_Registration]:
        found = [self.models.select(name, version)] if version else self.models.versions(name)
        if version == "":
            found = [model for model in found if not model.config.version]
        if not found:
            raise ModelNotFoundError(f"there is no model {name!r}; {self.models.loaded}")
        return [self._registrations[model.config.name, model.config.version] for model in found]

    def _forget_unloaded(self, key: Key) -> None:
        left = [gone for gone in self._unloaded.pop(key[0], ()) if gone.key != key]
        if left:
            self._unloaded[key[0]] = left


def _reason(model: ServedModel) -> str:
    return f"model {model.config.name!r} is being unloaded"


def _not_loaded(model: ServedModel) -> ModelLoadError:
    cause = (model.failure.strip().splitlines() or ["its worker has ended"])[-1]  # a traceback's exception
    return ModelLoadError(f"model {model.config.name!r} did not load: {cause}")
