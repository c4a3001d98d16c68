"""The front end as a dialect's page sees and controls it: `dialects.base.ServerView`.

Runs in the front end's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..dialects.shared.base import ModelStatus
from .models.registry import ModelRegistry


class View:
    """A `ServerView` over the registered models.

    Args:
        draining: tells whether the server is shutting down; called each time.
    """

    def __init__(self, registry: ModelRegistry, draining: Callable[[], bool]) -> None:
        self._registry = registry
        self._draining = draining

    @property
    def models(self) -> Sequence[ModelStatus]:
        """Every registered model, in order of registration."""
        return [model.status for model in self._registry.models]

    @property
    def unloaded(self) -> Sequence[ModelStatus]:
        """The models that have been unloaded and can be loaded again."""
        return [replace(model.status, ready=False, failed=False) for model in self._registry.unloaded]

    @property
    def ready(self) -> bool:
        """Whether there is a model, every one has a ready worker, and the server is not draining."""
        models = self._registry.models
        return not self._draining() and len(models) > 0 and all(model.ready for model in models)

    def select(self, name: str = "", version: str = "", unversioned: str = "") -> ModelStatus:
        """The model that a request means; raises as `ModelTable.select`."""
        return self._registry.models.select(name, version, unversioned).status

    async def load(self, name: str) -> None:
        """Load a model, again if it is loaded; raises as `ModelRegistry.load`."""
        await self._registry.load(name)

    async def unload(self, name: str) -> None:
        """Unload a model; raises as `ModelRegistry.unload`."""
        await self._registry.unload(name)
