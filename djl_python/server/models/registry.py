"""The models of this server, by name and version, and which one a request means.

Runs in the front end. An unloaded model is not found by requests any more, and can be loaded again. While its last
requests finish, `with_workers` still lists it, so that a shutdown stops its workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from ...core.errors import ModelLoadError, ModelNotFoundError, ModelNotNamedError
from .served_model import Health, ServedModel


class Models:
    """The registered models. Of a name's versions, the one registered last answers requests that name no version."""

    def __init__(self, default_model: str = "") -> None:
        self._default_model = default_model
        self._by_name: dict[str, dict[str, ServedModel]] = {}
        self._unloaded: dict[str, list[ServedModel]] = {}
        self._retiring: list[ServedModel] = []

    def add(self, model: ServedModel) -> None:
        """Register a model; its name and version must not be taken yet."""
        versions = self._by_name.setdefault(model.config.name, {})
        assert model.config.version not in versions
        versions[model.config.version] = model

    def __iter__(self) -> Iterator[ServedModel]:
        for versions in self._by_name.values():
            yield from versions.values()

    def __len__(self) -> int:
        return sum(len(versions) for versions in self._by_name.values())

    @property
    def several(self) -> bool:
        """Whether models of several names are loaded: a request must name one then, unless there is a default."""
        return len(self._by_name) > 1

    @property
    def only(self) -> ServedModel | None:
        """The model of every request, and of errors that arise before a model is selected; None: several, or none."""
        return None if len(self._by_name) != 1 else self.select("")

    @property
    def unloaded(self) -> Sequence[ServedModel]:
        """The models that have been unloaded and not loaded again."""
        return [model for versions in self._unloaded.values() for model in versions]

    @property
    def with_workers(self) -> Sequence[ServedModel]:
        """All models that may have workers: the registered ones, and those whose last requests are finishing."""
        return [*self, *self._retiring]

    def select(self, name: str, version: str = "", unversioned: str = "") -> ServedModel:
        """The model that a request means; "" where it names none. `unversioned` also finds a model without a version.

        Raises:
            ModelNotFoundError: no model or version of this name.
            ModelNotNamedError: the request must name one.
        """
        if not name:
            name = self._only_name()
        versions = self._by_name.get(name)
        if versions is None:
            raise ModelNotFoundError(f"there is no model {name!r}; {self._loaded()}")
        if not version:
            return versions[next(reversed(versions))]
        if version not in versions and version == unversioned and "" in versions:
            return versions[""]
        if version not in versions:
            known = ", ".join(known or unversioned or "(none)" for known in versions)
            raise ModelNotFoundError(f"model {name!r} has no version {version!r}; its versions: {known}")
        return versions[version]

    async def load(self, name: str) -> None:
        """Register and start every version of an unloaded model, and wait until each can answer.

        Versions that failed are loaded again; versions that are registered otherwise are only waited for.

        Raises:
            ModelNotFoundError: the server does not know the model.
            ModelLoadError: a version does not load; it stays registered, as failed.
        """
        for gone in self._unloaded.pop(name, []):
            model = gone.successor()
            self.add(model)
            model.start()
        if name not in self._by_name:
            known = ", ".join([*self._by_name, *self._unloaded])
            raise ModelNotFoundError(f"there is no model {name!r} to load; the server knows {known or 'none'}")
        for version, model in self._by_name[name].items():
            if model.health is Health.FAILED:
                again = self._by_name[name][version] = model.successor()
                again.start()
        models = list(self._by_name[name].values())
        await asyncio.gather(*(model.settled.wait() for model in models))
        for model in models:
            if not model.ready:
                cause = (model.failure.strip().splitlines() or ["it was unloaded"])[-1]  # a traceback's exception
                raise ModelLoadError(f"model {name!r} did not load: {cause}")

    async def unload(self, name: str, drain_timeout_s: float) -> None:
        """Take every version of a model out of service; its requests get `drain_timeout_s` to finish.

        Raises:
            ModelNotFoundError: the model is not loaded.
        """
        versions = self._by_name.pop(name, None)
        if versions is None:
            raise ModelNotFoundError(f"there is no model {name!r} to unload; {self._loaded()}")
        self._unloaded[name] = list(versions.values())
        self._retiring += versions.values()
        await asyncio.gather(*(self._retire(model, drain_timeout_s) for model in versions.values()))

    async def _retire(self, model: ServedModel, drain_timeout_s: float) -> None:
        try:
            async with asyncio.timeout(drain_timeout_s):
                await model.pool.wait_idle()
        except TimeoutError:
            pass  # `stop` fails the remaining requests
        await model.stop(f"model {model.config.name!r} is being unloaded")
        self._retiring.remove(model)

    def _only_name(self) -> str:
        if len(self._by_name) == 1:
            return next(iter(self._by_name))
        if self._default_model:
            return self._default_model
        if not self._by_name:
            raise ModelNotFoundError("no model is loaded")
        raise ModelNotNamedError(f"Parameter model_name is required: {self._loaded()}")

    def _loaded(self) -> str:
        return f"loaded: {', '.join(self._by_name)}" if self._by_name else "no model is loaded"
