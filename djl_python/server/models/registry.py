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
from typing import Any

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
from .description import ModelDescription
from .instances import Instances
from .operations import Key, Operations
from .placement import Placement
from .registration import AdapterOperation, Registration, Unloaded, not_loaded
from .scaling import with_workers
from .served_model import Health, ServedModel
from .table import ModelTable
from .trial_request import try_request


class ModelRegistry:
    """The models of a server.

    `register`, `scale`, `reload` and `unregister` check what they are asked for at once, and raise; the task that they
    return is done when that has happened. Nobody needs to await it: `describe` shows how far it is, and why it failed.

    Args:
        read: reads a model's configuration, in a thread, after it has fetched the model where that is needed; raises
            ConfigError.
        prepare: makes what a model's workers run with, and says how far it is; raises ServingError. None: nothing.
        turns: limits how many workers load at a time; None: no limit.
        drain_timeout_s: how many seconds the requests to workers that are removed get to finish.
        on_progress: called with each message of a worker that loads.
        on_change: called when a worker's state has changed.

    Attributes:
        models: the registered models; it is changed here only.
        read: see above.
    """

    def __init__(
        self,
        metrics: Metrics,
        placement: Placement,
        read: Callable[[ModelSpec], ModelConfig],
        *,
        default_model: str = "",
        prepare: Callable[[ModelConfig, Callable[[Status], None]], Coroutine[Any, Any, ModelConfig]] | None = None,
        turns: asyncio.Semaphore | None = None,
        drain_timeout_s: float = 30.0,
        on_progress: Callable[[ServedModel, Status], None] = lambda _model, _status: None,
        on_change: Callable[[ServedModel], None] = lambda _model: None,
    ) -> None:
        self.models = ModelTable(default_model)
        self._metrics = metrics
        self._placement = placement
        self.read = read
        self._prepare = prepare
        self._turns = turns
        self._drain_timeout_s = drain_timeout_s
        self._on_progress = on_progress
        self._on_change = on_change
        self._registrations: dict[Key, Registration] = {}
        self._unloaded = Unloaded()
        self._instances = Instances(drain_timeout_s)
        self._operations = Operations()
        self._closed = False

    # ------------------------------------------------------------------------------------ what is there

    @property
    def running(self) -> Sequence[ServedModel]:
        """All models that may have workers: also those whose last requests finish, and those that will take over."""
        return self._instances.running

    @property
    def unloaded(self) -> Sequence[ServedModel]:
        """The models that `unload` has taken out of service, and that have not been registered again."""
        return [gone.model for gone in self._unloaded]

    def describe(self, name: str, version: str | None = None) -> Sequence[ModelDescription]:
        """A model's versions, in order of registration, or one of them.

        Raises:
            ModelNotFoundError: there is no such model.
        """
        return [registration.description for registration in self._find(name, version)]

    # ------------------------------------------------------------------------------------ operations

    def register(
        self,
        spec: ModelSpec,
        known: ModelConfig | ConfigError | None = None,
        *,
        at_startup: bool = False,
        stays: bool = True,
    ) -> asyncio.Task[ServedModel]:
        """Add a model: read its configuration and start its workers. The task is done when the first can answer.

        A model that can't be read, or does not load, stays registered, as failed, until it is reloaded or unregistered;
        without `stays` it does not.

        Args:
            known: what reading it has given, or why it can't be read; None: it is read now.
            at_startup: whether the server begins with it.

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
        registration = self._registrations[key] = Registration(spec, made, at_startup)
        self._unloaded.discard(key)
        self.models.put(made, at_startup=at_startup)
        return self._operations.begin(registration.key, self._register, registration, known, stays)

    def reload(
        self, name: str, version: str = "", spec: ModelSpec | None = None, *, keep_workers: bool = True
    ) -> asyncio.Task[ServedModel]:
        """Read a model again, load it beside its present instance, and have that replaced once the new one answers.

        Every worker of the new one is ready then, and it has answered a request, see `trial_request`. The present
        instance answers what it has admitted, and ends. If the new one can't be read, does not load or does not answer,
        the present one stays, the task raises the reason, and `describe` shows it. One that has failed is replaced at
        once.

        Args:
            version: "" for the one without a version, else the one that requests get that name none.
            spec: where the model is now, under the same name and version; None: where it was.
            keep_workers: whether it keeps the number of workers that it was scaled to.

        Raises:
            ModelNotFoundError: there is no such model.
            UnavailableError: the server is shutting down.
            ConfigError, ModelLoadError: from the task.
        """
        self._check_open()
        registration = self._select(name, version)
        assert spec is None or (spec.name, spec.version) == registration.key
        begin = self._operations.begin
        return begin(registration.key, self._reload, registration, spec or registration.spec, keep_workers)

    def scale(
        self, name: str, version: str = "", *, min_workers: int, max_workers: int | None = None
    ) -> asyncio.Task[ServedModel]:
        """Have from `min_workers` to `max_workers` workers on each device: as many as now, if that is between the two.

        From then on, their number follows the load between the two. Holds until the model is unregistered, also when it
        is reloaded. The task is done when new workers are ready, and those that are removed have answered their calls.
        If a new one does not load, the numbers are what they were.

        Args:
            version: "" for the one without a version, else the one that requests get that name none.
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

    def change_adapter(self, name: str, change: AdapterOperation) -> asyncio.Task[None]:
        """Change an adapter of a model. Holds until the model is unregistered, also when it is reloaded.

        Raises:
            ModelNotFoundError, UnavailableError: there is no such model, or the server is shutting down.
            ServingError: from the task, see `ServedModel.change_adapter`.
        """
        self._check_open()
        found = self._select(name, "")
        return self._operations.begin(found.key, found.change_adapter, change)

    def unregister(self, name: str, version: str | None = None) -> asyncio.Task[None]:
        """Remove a model, or one version of it: requests do not find it from now on.

        What was begun with it ends with a ModelLoadError. The task is done when the requests that it has are answered,
        or have failed after `drain_timeout`, and its workers have ended. One that `unload` has removed is forgotten.

        Raises:
            ModelNotFoundError: there is no such model.
        """
        gone = [one for one in self._unloaded.versions(name) if version in (None, one.spec.version)]
        for registration in gone:
            self._unloaded.discard(registration.key)
        if gone and not self.models.versions(name):
            return self._unregister([])
        return self._unregister(self._find(name, version))

    async def load(self, name: str) -> None:
        """Load every version of a model: those that `unload` has removed, and, again, those that are there.

        Those that load already are only waited for. The call returns when each can answer.

        Raises:
            ModelNotFoundError: the server does not know the model.
            ModelLoadError: a version does not load. It stays registered, as failed, or as it was.
        """
        begin = self._operations.begin
        waiting: list[asyncio.Task[Any]] = []
        for gone in self._unloaded.versions(name):
            self.register(gone.spec)
        if not (versions := self.models.versions(name)):
            known = ", ".join([*self.models.names, *self._unloaded.names])
            raise ModelNotFoundError(f"there is no model {name!r} to load; the server knows {known or 'none'}")
        for model in versions:
            if model.health is Health.PENDING:
                registration = self._registrations[model.config.name, model.config.version]
                waiting.append(begin(registration.key, registration.wait_ready))  # after what was begun above
            else:
                waiting.append(self.reload(name, model.config.version))
        await asyncio.wait(waiting)
        for version in waiting:
            try:
                version.result()
            except ConfigError as exc:
                raise ModelLoadError(f"model {name!r} did not load: {exc.message}") from exc

    async def unload(self, name: str) -> None:
        """Unregister every version of a model, in such a way that `load` finds them again.

        Raises:
            ModelNotFoundError: the model is not registered.
        """
        if not self.models.versions(name):
            raise ModelNotFoundError(f"there is no model {name!r} to unload; {self.models.loaded}")
        registrations = self._find(name, None)
        self._unloaded.add(registrations)
        await self._unregister(registrations)

    async def close(self) -> None:
        """End everything: what was begun fails, and so do requests that are not answered yet."""
        self._closed = True
        for registration in self._registrations.values():
            registration.ended.set()
        await asyncio.gather(*(model.stop() for model in self.running))
        await self._operations.wait()

    # ------------------------------------------------------------------------------------ inside

    async def _register(
        self, registration: Registration, known: ModelConfig | ConfigError | None, stays: bool
    ) -> ServedModel:
        try:
            with registration.busy("loading"):
                config = await self._config_of(registration, registration.spec, known)
                if config is not known:
                    self._put(registration, registration.model.successor(config))
                return await self._load(registration)
        except ServingError:
            if not stays and not registration.ended.is_set():
                self._unregister([registration])
            raise

    async def _reload(self, registration: Registration, spec: ModelSpec, keep_workers: bool) -> ServedModel:
        workers = registration.workers
        if not keep_workers:
            registration.workers = None
        try:
            with registration.busy("reloading"):
                return await self._replace(registration, spec)
        except ServingError as exc:
            registration.reload_failure, registration.workers = exc.message, workers
            raise

    async def _replace(self, registration: Registration, spec: ModelSpec) -> ServedModel:
        config = await self._config_of(registration, spec)
        old, new = registration.model, registration.model.successor(config)
        registration.reload_failure = ""
        if old.health is Health.FAILED:
            registration.spec = spec
            self._put(registration, new)
            await self._instances.stop(old)
            return await self._load(registration)
        self._instances.start(new)
        registration.successor = new
        try:
            await registration.unless_ended(new.loaded())
            registration.now("answering a trial request")
            await registration.unless_ended(try_request(new))
        except BaseException:
            await self._instances.stop(new)
            raise
        registration.spec, registration.successor = spec, None
        self._put(registration, new)
        registration.now("the one before it answers its last requests")
        await self._instances.retire(old)
        return new

    async def _scale(self, registration: Registration, least: int, most: int) -> ServedModel:
        model = registration.model
        with registration.busy("scaling"):
            await registration.unless_ended(model.scale(least, most, self._drain_timeout_s))
        registration.workers = least, most
        return model

    def _unregister(self, registrations: Sequence[Registration]) -> asyncio.Task[None]:
        for registration in registrations:
            del self._registrations[registration.key]
            self.models.remove(registration.model)
            registration.ended.set()
        begin = self._operations.begin
        return self._operations.together([begin(one.key, self._end, one) for one in registrations])

    async def _end(self, registration: Registration) -> None:
        await self._instances.retire(registration.model)
        if registration.key not in self._registrations:  # nor is another of its name
            self._metrics.forget(*registration.key)

    async def _config_of(
        self, registration: Registration, spec: ModelSpec, known: ModelConfig | ConfigError | None = None
    ) -> ModelConfig:
        """The configuration of a model whose workers may start. If there is none, a model without another is FAILED."""
        try:
            if isinstance(known, ConfigError):
                raise known
            if known is None:
                registration.now("reading its files")
                known = await registration.unless_ended(asyncio.to_thread(self.read, spec))
            config = known
            if self._prepare is not None:
                tell = registration.telling(self._on_progress)
                config = await registration.unless_ended(self._prepare(config, tell))
        except BaseException as exc:
            if registration.model.health in (Health.PENDING, Health.FAILED) and not registration.ended.is_set():
                registration.model.fail(exc.message if isinstance(exc, ServingError) else repr(exc))
            raise
        registration.now("")
        return config if registration.workers is None else with_workers(config, *registration.workers)

    async def _load(self, registration: Registration) -> ServedModel:
        """Start a registered model, and wait until it can answer."""
        model = registration.model
        if not registration.ended.is_set():
            self._instances.start(model)
        await registration.unless_ended(model.settled.wait())
        if model.health is Health.FAILED:
            raise not_loaded(model)
        return model

    def _put(self, registration: Registration, model: ServedModel) -> None:
        """Have requests answered by this instance from now on."""
        registration.model = model
        self.models.put(model)

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the server is shutting down")

    def _select(self, name: str, version: str) -> Registration:
        if (name, version) in self._registrations:
            return self._registrations[name, version]
        config = self.models.select(name, version).config
        return self._registrations[config.name, config.version]

    def _find(self, name: str, version: str | None) -> Sequence[Registration]:
        found = [self.models.select(name, version)] if version else self.models.versions(name)
        if version == "":
            found = [model for model in found if not model.config.version]
        if not found:
            raise ModelNotFoundError(f"there is no model {name!r}; {self.models.loaded}")
        return [self._registrations[model.config.name, model.config.version] for model in found]
