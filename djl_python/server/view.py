"""The front end as a dialect's page sees and controls it: `dialects.shared.views.ServerView`.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from ..config import ModelSpec, registered_spec
from ..core.access.api_key import ApiKey
from ..core.errors import ConfigError, ForbiddenError, ModelNotFoundError, ParameterError, UnavailableError
from ..core.model_files.download_part import DownloadPart
from ..core.model_files.model_card import ModelCard
from ..dialects.shared.views import ModelStatus
from ..sources.cards import card_of
from .models.registry import ModelRegistry
from .models.table import MayUse, everybody
from .pulling.pulls import Pulls


class View:
    """A `ServerView` over the registered models.

    Args:
        draining: tells whether the server is shutting down; called each time.
    """

    def __init__(self, registry: ModelRegistry, pulls: Pulls, draining: Callable[[], bool]) -> None:
        self._registry = registry
        self._pulls = pulls
        self._draining = draining
        self._reading = {whole: asyncio.Lock() for whole in (False, True)}

    @property
    def models(self) -> Sequence[ModelStatus]:
        """Every registered model, in order of registration."""
        return [self._registry.residence.shown(model.status) for model in self._registry.models]

    @property
    def unloaded(self) -> Sequence[ModelStatus]:
        """The models that have been unloaded and can be loaded again."""
        return [replace(model.status, ready=False, failed=False) for model in self._registry.unloaded]

    @property
    def ready(self) -> bool:
        """Whether there is a model, every one is available, and the server is not draining."""
        models = self._registry.models
        return not self._draining() and len(models) > 0 and all(model.ready or model.unloaded for model in models)

    @property
    def lost(self) -> str:
        """Why only a new container or another machine helps; "" if this one may recover."""
        return next((model.setback for model in self._registry.models if model.lost), "")

    def select(
        self, name: str = "", version: str = "", unversioned: str = "", may_use: MayUse = everybody
    ) -> ModelStatus:
        """The model that a request means; raises as `ModelTable.select`."""
        model = self._registry.models.select(name, version, unversioned, may_use)
        return self._registry.residence.shown(model.status)

    async def load(self, name: str) -> None:
        """Load a model, again if it is loaded; raises as `ModelRegistry.load`."""
        await self._registry.load(name)

    async def unload(self, name: str) -> None:
        """Unload a model; raises as `ModelRegistry.unload`."""
        await self._registry.unload(name)

    async def measure(self) -> None:
        """Measure the memory of the loaded models."""
        await self._registry.residence.measure()

    async def card(self, model: ModelStatus, *, whole: bool = False) -> ModelCard:
        """What a model's files say of it, read in a thread; one after the other, as that takes a processor.

        A whole card takes long. Nobody else waits for it.
        """
        async with self._reading[whole]:
            return await asyncio.to_thread(card_of, model.config, whole=whole)

    async def remove(self, name: str) -> None:
        """Unregister a model; raises as `ModelRegistry.unregister`."""
        await self._registry.unregister(name)

    async def copy(self, name: str, new_name: str) -> None:
        """Register a model again under another name; raises as `ModelRegistry.copy`."""
        await self._registry.copy(name, new_name)

    def pull(self, name: str, url: str) -> AsyncIterator[DownloadPart]:
        """Download and register a model; raises as `Pulls.pull`, and ParameterError where it can't be called so."""
        if self._draining():
            raise UnavailableError("the server is shutting down")
        return self._pulls.pull(_spec_of(name, url))


def _spec_of(name: str, url: str) -> ModelSpec:
    """What a pull registers. Without a name, it has one from its URL.

    Raises:
        ParameterError: the model can't be called so.
    """
    try:
        return registered_spec(url, "", name=name)
    except ConfigError as exc:
        raise ParameterError(exc.message, "model") from exc


class PartialView:
    """A `ServerView` of the models that a key may use."""

    def __init__(self, whole: View, key: ApiKey) -> None:
        self._whole = whole
        self._key = key

    @property
    def models(self) -> Sequence[ModelStatus]:
        """As `View.models`."""
        return [model for model in self._whole.models if self._key.may_use(model.config.name)]

    @property
    def unloaded(self) -> Sequence[ModelStatus]:
        """As `View.unloaded`."""
        return [model for model in self._whole.unloaded if self._key.may_use(model.config.name)]

    @property
    def ready(self) -> bool:
        """As `View.ready`, of the whole server."""
        return self._whole.ready

    @property
    def lost(self) -> str:
        """As `View.lost`, of the whole server."""
        return self._whole.lost

    def select(self, name: str = "", version: str = "", unversioned: str = "") -> ModelStatus:
        """The model that a request means; raises as `ModelTable.select`."""
        return self._whole.select(name, version, unversioned, self._key.may_use)

    async def load(self, name: str) -> None:
        """Load a model; raises as `View.load`."""
        self._check(name, [*self.models, *self.unloaded])
        await self._whole.load(name)

    async def unload(self, name: str) -> None:
        """Unload a model; raises as `View.unload`."""
        self._check(name, self.models)
        await self._whole.unload(name)

    async def measure(self) -> None:
        """Measure the memory of the loaded models."""
        await self._whole.measure()

    async def card(self, model: ModelStatus, *, whole: bool = False) -> ModelCard:
        """As `View.card`."""
        return await self._whole.card(model, whole=whole)

    async def remove(self, name: str) -> None:
        """Unregister a model; raises as `View.remove`."""
        await self._whole.remove(self.select(name).config.name)

    async def copy(self, name: str, new_name: str) -> None:
        """Register a model again under another name, if the key may use one of that name; raises as `View.copy`."""
        self._check_new(new_name)
        await self._whole.copy(self.select(name).config.name, new_name)

    def pull(self, name: str, url: str) -> AsyncIterator[DownloadPart]:
        """Download and register a model, if the key may use one of its name; raises as `View.pull`."""
        name = _spec_of(name, url).name
        self._check_new(name)
        return self._whole.pull(name, url)

    def _check(self, name: str, known: Sequence[ModelStatus]) -> None:
        """Refuse a model that is not one of these, without naming any that the key may not use."""
        if all(model.config.name != name for model in known):
            names = ", ".join(dict.fromkeys(model.config.name for model in known))
            raise ModelNotFoundError(f"there is no model {name!r}; there is {names or 'none'}")

    def _check_new(self, name: str) -> None:
        """Refuse to make a model that the key may not use."""
        if not self._key.may_use(name):
            raise ForbiddenError(f"the API key is for other models than {name!r}")
