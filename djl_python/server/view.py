"""The front end as a dialect's page sees and controls it: `dialects.base.ServerView`.

Runs in the front end's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..dialects.shared.base import ModelStatus
from .models.registry import Models


class View:
    """A `ServerView` over the registered models.

    Args:
        draining: tells whether the server is shutting down; called each time.
        drain_timeout_s: seconds that the requests of an unloaded model get to finish.
    """

    def __init__(self, models: Models, draining: Callable[[], bool], drain_timeout_s: float) -> None:
        self._models = models
        self._draining = draining
        self._drain_timeout_s = drain_timeout_s

    @property
    def models(self) -> Sequence[ModelStatus]:
        """Every registered model, in order of registration."""
        return [model.status for model in self._models]

    @property
    def unloaded(self) -> Sequence[ModelStatus]:
        """The models that have been unloaded and can be loaded again."""
        return [replace(model.status, ready=False, failed=False) for model in self._models.unloaded]

    @property
    def ready(self) -> bool:
        """Whether there is a model, every one has a ready worker, and the server is not draining."""
        return not self._draining() and len(self._models) > 0 and all(model.ready for model in self._models)

    def select(self, name: str = "", version: str = "", unversioned: str = "") -> ModelStatus:
        """The model that a request means; raises as `Models.select`."""
        return self._models.select(name, version, unversioned).status

    async def load(self, name: str) -> None:
        """Load an unloaded model again; raises as `Models.load`."""
        await self._models.load(name)

    async def unload(self, name: str) -> None:
        """Unload a model; raises as `Models.unload`."""
        await self._models.unload(name, self._drain_timeout_s)
