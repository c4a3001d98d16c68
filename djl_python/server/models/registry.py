"""The registry: registers, scales, reloads, unregisters and describes models while the server runs.

Runs in the front end's event loop. Slow parts of reading a model's configuration (downloads, archives, files) run in
other threads.

Two operations on one model (a name and a version) take place one after the other, in the order in which they were
begun; those on different models side by side. `unregister` alone does not wait for earlier operations: it ends them. A
request that has been admitted is answered by the workers of the instance that admitted it, whatever becomes of the
model meanwhile, unless that takes longer than the server's `drain_timeout`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from ...config import ModelConfig, ModelSpec
from ...config.specs import is_model_name
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
from ..metrics.metrics import Metrics
from .description import ModelDescription
from .health import Health
from .instances import ModelInstances
from .operations import Key, Operations
from .placement import Placement
from .registration import AdapterOperation, Registration
from .registrations import Registrations
from .residence.clock import Clock
from .residence.residence import REQUEST, Residence
from .served_model import ServedModel
from .transitions import PrepareModel, ReadModel, Transitions


class ModelRegistry:
    """The models of a server.

    `register`, `scale`, `reload` and `unregister` check what they are asked for at once, and raise; they return a task
    for the operation. Nobody needs to await it: `describe` shows its progress, and why it failed.

    Args:
        read, prepare: see `ReadModel` and `PrepareModel`; without `prepare` there is nothing to make.
        turns: limits how many workers load at a time; None: no limit.
        drain_timeout_s: how many seconds the requests to workers that are removed get to finish.
        max_workers: how many workers of a model are started, whatever it says; None: as many as it says.
        load_on_request: whether the models that the server begins with are loaded at their first requests.
        memory_budget, clock: see `Residence`.
        on_progress: called with each message of a worker that loads.
        on_change: called when a worker's state has changed.

    Attributes:
        models: the registered models; it is changed here only.
        read: see above.
        residence: loads and unloads models while they stay registered.
    """

    def __init__(
        self,
        metrics: Metrics,
        placement: Placement,
        read: ReadModel,
        *,
        default_model: str = "",
        prepare: PrepareModel | None = None,
        turns: asyncio.Semaphore | None = None,
        drain_timeout_s: float = 30.0,
        max_workers: int | None = None,
        load_on_request: bool = False,
        memory_budget: int | None = None,
        clock: Clock | None = None,
        on_progress: Callable[[ServedModel, Status], None] = lambda _model, _status: None,
        on_change: Callable[[ServedModel], None] = lambda _model: None,
    ) -> None:
        self._registrations = Registrations(default_model)
        self.models = self._registrations.models
        self._metrics = metrics
        self._placement = placement
        self.read = read
        self._turns = turns
        self._on_progress = on_progress
        self._on_change = on_change
        self._instances = ModelInstances(drain_timeout_s, max_workers)
        self._load_on_request = load_on_request
        self._budgeted = memory_budget is not None
        self.residence = Residence(self, memory_budget, clock=clock)
        self._transitions = Transitions(
            self.models,
            metrics,
            self._instances,
            self.residence,
            read,
            prepare,
            drain_timeout_s=drain_timeout_s,
            on_progress=on_progress,
        )
        self._operations = Operations(self.residence.changed)
        self._closed = False

    # ------------------------------------------------------------------------------------ what is there

    @property
    def running(self) -> Sequence[ServedModel]:
        """All models that may have workers: also those whose last requests finish, and those that will take over."""
        return self._instances.running

    @property
    def unloaded(self) -> Sequence[ServedModel]:
        """The models that `unload` has taken out of service, and that have not been registered again."""
        return [gone.model for gone in self._registrations.unloaded]

    def describe(self, name: str, version: str | None = None) -> Sequence[ModelDescription]:
        """A model's versions, in order of registration, or one of them.

        Raises:
            ModelNotFoundError: there is no such model.
        """
        models = [registration.description for registration in self._registrations.find(name, version)]
        return [replace(model, status=self.residence.shown(model.status)) for model in models]

    def current(self, key: Key) -> ServedModel:
        """The instance that answers a model's requests.

        Raises:
            ModelNotFoundError: there is no such model.
        """
        (registration,) = self._registrations.find(*key)
        return registration.model

    def busy(self, key: Key) -> bool:
        """Whether an operation on a model has been begun and has not ended."""
        return self._operations.busy(key)

    # ------------------------------------------------------------------------------------ operations

    def register(
        self,
        spec: ModelSpec,
        known: ModelConfig | ConfigError | None = None,
        *,
        at_startup: bool = False,
        stays: bool = True,
        on_request: bool = False,
    ) -> asyncio.Task[ServedModel]:
        """Add a model: read its configuration and start its workers. The task is done when the first can answer.

        A model that can't be read, or does not load, stays registered, as failed, until it is reloaded or unregistered;
        without `stays` it does not.

        Args:
            known: its configuration, or why it can't be read; None: it is read now.
            at_startup: whether the server begins with it.
            on_request: whether it is loaded by its first request, if its configuration is known.

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
            on_unused=self.residence.unused,
            growing=self.residence.growing if self._budgeted else None,
        )
        registration = Registration(spec, made, at_startup)
        self._registrations.add(registration)
        self.residence.add(key)
        if (on_request or (at_startup and self._load_on_request)) and isinstance(known, ModelConfig):
            made.rest()
        return self._operations.begin(registration.key, self._register, registration, known, stays)

    def copy(self, name: str, new_name: str) -> asyncio.Task[ServedModel]:
        """Register a model again under another name, from the same place. It is loaded by its first request.

        Raises:
            ModelNotFoundError, ModelConflictError, UnavailableError: as `reload` and `register`.
            ParameterError: the name can't be a model's.
        """
        registration = self._registrations.select(name, "")
        if not is_model_name(new_name):
            raise ParameterError(f"{new_name!r} can't be a model's name", "destination")
        spec = msgspec.structs.replace(registration.spec, name=new_name, version="")
        config = msgspec.structs.replace(registration.model.config, name=new_name, version="")
        return self.register(spec, config, on_request=True)

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
        registration = self._registrations.select(name, version)
        assert spec is None or (spec.name, spec.version) == registration.key
        begin = self._operations.begin
        return begin(registration.key, self._transitions.reload, registration, spec or registration.spec, keep_workers)

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
        registration = self._registrations.select(name, version)
        if min_workers < 1:
            raise ParameterError(f"min_workers: expected at least 1, got {min_workers}", "min_workers")
        most = min_workers if max_workers is None else max_workers
        if most < min_workers:
            raise ParameterError(
                f"max_workers: expected at least min_workers ({min_workers}), got {most}", "max_workers"
            )
        return self._operations.begin(registration.key, self._transitions.scale, registration, min_workers, most)

    def change_adapter(self, name: str, change: AdapterOperation) -> asyncio.Task[None]:
        """Change an adapter of a model. Holds until the model is unregistered, also when it is reloaded.

        Raises:
            ModelNotFoundError, UnavailableError: there is no such model, or the server is shutting down.
            ServingError: from the task, see `ServedModel.change_adapter`.
        """
        self._check_open()
        registration = self._registrations.select(name, "")
        return self._operations.begin(registration.key, self._transitions.change_adapter, registration, change)

    def unregister(self, name: str, version: str | None = None) -> asyncio.Task[None]:
        """Remove a model, or one version of it: requests do not find it from now on.

        Its running operations end with a ModelLoadError. The task is done when the requests that it has are answered,
        or have failed after `drain_timeout`, and its workers have ended. One that `unload` has removed is forgotten.

        Raises:
            ModelNotFoundError: there is no such model.
        """
        forgotten = self._registrations.unloaded.forget(name, version)
        if forgotten and not self.models.versions(name):
            return self._unregister([])
        return self._unregister(self._registrations.find(name, version))

    def bring(self, key: Key) -> asyncio.Task[ServedModel]:
        """Start the workers of an unloaded model. The task is done when the first can answer.

        If it does not load, it is unloaded as before, and `describe` shows why.

        Raises:
            ModelNotFoundError: there is no such model.
            UnavailableError: the server is shutting down; from the task: there is no memory for it.
            ModelLoadError, ConfigError: from the task.
        """
        self._check_open()
        (registration,) = self._registrations.find(*key)
        return self._operations.begin(key, self._transitions.bring, registration)

    def release(self, key: Key, why: str = REQUEST, still: Callable[[], bool] = lambda: True) -> asyncio.Task[bool]:
        """End a model's workers, once their calls are answered. It stays registered; its next request starts others.

        Args:
            why: for the log and the metrics.
            still: asked when it is about to be done: whether to do so. The task tells whether it was done.

        Raises:
            ModelNotFoundError: there is no such model.
            UnavailableError: the server is shutting down.
        """
        self._check_open()
        (registration,) = self._registrations.find(*key)
        return self._operations.begin(key, self._transitions.release, registration, why, still)

    async def load(self, name: str) -> None:
        """Load every version of a model: those that `unload` has removed, and, again, those that are there.

        Those that load already are only waited for. The call returns when each can answer.

        Raises:
            ModelNotFoundError: the server does not know the model.
            ModelLoadError: a version does not load. It stays registered, as failed, or as it was.
        """
        begin = self._operations.begin
        waiting: list[asyncio.Task[Any]] = []
        for gone in self._registrations.unloaded.versions(name):
            self.register(gone.spec)
        if not (versions := self.models.versions(name)):
            known = ", ".join([*self.models.names, *self._registrations.unloaded.names])
            raise ModelNotFoundError(f"there is no model {name!r} to load; the server knows {known or 'none'}")
        for model in versions:
            if model.health is Health.UNLOADED:
                waiting.append(self.bring((name, model.config.version)))
            elif model.health is Health.PENDING:
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
        registrations = self._registrations.find(name, None)
        self._registrations.unloaded.add(registrations)
        await self._unregister(registrations)

    async def close(self) -> None:
        """End everything: running operations and unanswered requests fail."""
        self._closed = True
        self.residence.close()
        for registration in self._registrations:
            registration.ended.set()
        await asyncio.gather(*(model.stop() for model in self.running))
        await self._operations.wait()
        await self._placement.close()

    # ------------------------------------------------------------------------------------ inside

    async def _register(
        self, registration: Registration, known: ModelConfig | ConfigError | None, stays: bool
    ) -> ServedModel:
        try:
            return await self._transitions.load(registration, known)
        except ServingError:
            if not stays and not registration.ended.is_set():
                self._unregister([registration])
            raise

    def _unregister(self, registrations: Sequence[Registration]) -> asyncio.Task[None]:
        for registration in registrations:
            self._registrations.remove(registration)
            self.residence.forget(registration.key)
            registration.ended.set()
        begin = self._operations.begin
        return self._operations.together([begin(entry.key, self._end, entry) for entry in registrations])

    async def _end(self, registration: Registration) -> None:
        await self._instances.retire(registration.model)
        if registration.key not in self._registrations:  # nor is another of its name
            self._metrics.forget(*registration.key)

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the server is shutting down")
