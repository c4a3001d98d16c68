"""What happens to a registered model: it is loaded, replaced, scaled and unloaded.

Runs in the front end's event loop, in the tasks of `Operations`: the registry has checked what it was asked for, and
each goes on until it is done or the model is unregistered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from ...config import ModelConfig, ModelSpec
from ...core.errors import ConfigError, ServingError, UnavailableError
from ...ipc.protocol import Status
from ..metrics.metrics import Metrics
from .health import Health
from .instances import ModelInstances
from .registration import AdapterOperation, Registration, not_loaded
from .residence.residence import IDLE, MEMORY, REQUEST, Residence
from .scaling.scaling import with_workers
from .served_model import ServedModel
from .table import ModelTable
from .trial_request import try_request

log = logging.getLogger(__name__)

#: Reads a model's configuration, in a thread, after it has fetched the model where that is needed; raises ConfigError.
ReadModel = Callable[[ModelSpec], ModelConfig]
#: Makes the environment of a model's workers, and reports progress; raises ServingError.
PrepareModel = Callable[[ModelConfig, Callable[[Status], None]], Coroutine[Any, Any, ModelConfig]]

#: What the log says of why a model was unloaded.
_WHY: Final = {IDLE: "it was idle", MEMORY: "another model needs its memory", REQUEST: "on request"}


class Transitions:
    """Takes registrations from one state to the next.

    Every method raises ModelLoadError if the model is unregistered meanwhile.

    Args:
        models: the table of models that requests find; each new instance is put there.
        instances: starts and ends instances.
        residence: says whether there is memory for an instance.
        read, prepare: see `ReadModel` and `PrepareModel`; without `prepare` there is nothing to make.
        drain_timeout_s: how many seconds the requests to workers that are removed get to finish.
        on_progress: called with each message of `prepare`.
    """

    def __init__(
        self,
        models: ModelTable,
        metrics: Metrics,
        instances: ModelInstances,
        residence: Residence,
        read: ReadModel,
        prepare: PrepareModel | None,
        *,
        drain_timeout_s: float,
        on_progress: Callable[[ServedModel, Status], None],
    ) -> None:
        self._models = models
        self._metrics = metrics
        self._instances = instances
        self._residence = residence
        self._read = read
        self._prepare = prepare
        self._drain_timeout_s = drain_timeout_s
        self._on_progress = on_progress

    async def load(self, registration: Registration, known: ModelConfig | ConfigError | None) -> ServedModel:
        """Load a model for the first time.

        Args:
            known: its configuration, or why it can't be read; None: it is read now.

        Raises:
            ConfigError, ModelLoadError: it has failed.
        """
        if registration.model.unloaded:
            return registration.model
        with registration.busy("loading"):
            config = await self._config_of(registration, registration.spec, known)
            if config is not known:
                self._put(registration, registration.model.successor(config))
            return await self._load(registration, evict=not registration.at_startup)

    async def reload(self, registration: Registration, spec: ModelSpec, keep_workers: bool) -> ServedModel:
        """Have a model replaced by one that is read again, from `spec`; see `ModelRegistry.reload`.

        Raises:
            ConfigError, ModelLoadError: the present instance stays.
        """
        workers = registration.workers
        if not keep_workers:
            registration.workers = None
        try:
            with registration.busy("reloading"):
                return await self._replace(registration, spec)
        except ServingError as exc:
            registration.reload_failure, registration.workers = exc.message, workers
            raise

    async def bring(self, registration: Registration) -> ServedModel:
        """Load a model that waits for its next request.

        Raises:
            ServingError: it waits as before.
        """
        old = registration.model
        if not old.unloaded:  # an earlier operation has loaded it
            return old
        with registration.busy("loading"), self._residence.loading(registration.key):
            try:
                config = await self._config_of(registration, registration.spec, old.config)
                self._put(registration, old.same_again(config))
                model = await self._load(registration)
            except ServingError as exc:
                self._metrics.model(*registration.key).load_ended("failed")
                if not registration.ended.is_set():
                    await self._rest(registration, exc.message)
                raise
        self._metrics.model(*registration.key).load_ended("loaded")
        return model

    async def change_adapter(self, registration: Registration, change: AdapterOperation) -> None:
        """Change an adapter; a model that is unloaded is loaded first."""
        await self.bring(registration)
        await registration.change_adapter(change)

    async def release(self, registration: Registration, why: str, still: Callable[[], bool]) -> bool:
        """Unload a model, for a reason of `_WHY`, if `still` says so when it is its turn. Tells whether it was done."""
        model = registration.model
        if model.unloaded or registration.ended.is_set() or not still():
            return False
        log.info("unloaded (%s)", _WHY[why], extra=model.log_extra)
        with registration.busy("unloading"):
            await self._rest(registration)
        self._metrics.model(*registration.key).unloaded(why)
        return True

    async def scale(self, registration: Registration, least: int, most: int) -> ServedModel:
        """Have so many workers on each device, at least and at most.

        Raises:
            ServingError: new ones do not load; the numbers are what they were.
        """
        model = registration.model
        if model.unloaded:  # its next request starts so many
            model.config = with_workers(model.config, least, most)
            registration.workers = least, most
            return model
        with registration.busy("scaling"):
            await registration.unless_ended(self._residence.admit_workers(model, model.lacking(least)))
            await registration.unless_ended(model.scale(least, most, self._drain_timeout_s))
        registration.workers = least, most
        return model

    async def _replace(self, registration: Registration, spec: ModelSpec) -> ServedModel:
        config = await self._config_of(registration, spec)
        old, new = registration.model, registration.model.successor(config)
        registration.reload_failure = ""
        if old.health is Health.FAILED:
            registration.spec = spec
            self._put(registration, new)
            await self._instances.stop(old)
            return await self._load(registration)
        await registration.unless_ended(self._residence.admit(registration.key, config))
        self._instances.start(new)
        registration.successor = new
        try:
            await registration.unless_ended(new.loaded())
            registration.now("answering a trial request")
            await registration.unless_ended(try_request(new))
        except BaseException:
            await self._instances.stop(new)
            if old.unloaded:
                old.metrics.loaded(False)
            raise
        registration.spec, registration.successor = spec, None
        self._put(registration, new)
        registration.now("the one before it answers its last requests")
        await self._instances.retire(old)
        return new

    async def _rest(self, registration: Registration, failure: str = "") -> None:
        """Have the model wait for its next request, and end its workers."""
        old, resting = registration.model, registration.model.same_again()
        resting.rest(failure)
        self._put(registration, resting)
        self._residence.unloaded(registration.key)
        await self._instances.retire(old)

    async def _config_of(
        self, registration: Registration, spec: ModelSpec, known: ModelConfig | ConfigError | None = None
    ) -> ModelConfig:
        """The configuration of a model whose workers may start. If there is none, a model without another is FAILED."""
        try:
            if isinstance(known, ConfigError):
                raise known
            if known is None:
                registration.now("reading its files")
                known = await registration.unless_ended(asyncio.to_thread(self._read, spec))
            config = known
            if self._prepare is not None:
                report = registration.reporting(self._on_progress)
                config = await registration.unless_ended(self._prepare(config, report))
        except BaseException as exc:
            if registration.model.health in (Health.PENDING, Health.FAILED) and not registration.ended.is_set():
                registration.model.fail(exc.message if isinstance(exc, ServingError) else repr(exc))
            raise
        registration.now("")
        return config if registration.workers is None else with_workers(config, *registration.workers)

    async def _load(self, registration: Registration, *, evict: bool = True) -> ServedModel:
        """Start a registered model, and wait until it can answer.

        Args:
            evict: whether others are unloaded if there is no memory for it; else it waits for a request then.
        """
        model = registration.model
        try:
            admitting = self._residence.admit(registration.key, model.config, evict=evict)
            admitted = await registration.unless_ended(admitting)
        except UnavailableError as exc:
            model.fail(exc.message)
            raise
        if not admitted:
            model.rest()
            return model
        if not registration.ended.is_set():
            self._instances.start(model)
        await registration.unless_ended(model.settled.wait())
        if model.health is Health.FAILED:
            raise not_loaded(model)
        return model

    def _put(self, registration: Registration, model: ServedModel) -> None:
        """Have requests answered by this instance from now on."""
        registration.model = model
        self._models.put(model)
