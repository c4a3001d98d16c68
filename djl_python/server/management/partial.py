"""The registry as a manager sees it whose key is for some models: there are no others.

Runs in the front end's event loop. It keeps such a manager from changing other models by mistake: what it registers
under its own names is code all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ...config import ModelConfig, ModelSpec
from ...core.access.api_key import ApiKey
from ...core.errors import ForbiddenError
from ..models.description import ModelDescription
from ..models.operations import Key
from ..models.registration import AdapterOperation
from ..models.registry import ModelRegistry
from ..models.residence.residence import Residence
from ..models.served_model import ServedModel


class PartialModels:
    """`ModelTable`, as far as management reads it."""

    def __init__(self, whole: ModelRegistry, key: ApiKey) -> None:
        self._whole = whole.models
        self._key = key

    @property
    def names(self) -> Sequence[str]:
        """As `ModelTable.names`."""
        return [name for name in self._whole.names if self._key.may_use(name)]

    def versions(self, name: str) -> Sequence[ServedModel]:
        """As `ModelTable.versions`."""
        return self._whole.versions(name) if self._key.may_use(name) else ()

    def select(self, name: str, version: str = "") -> ServedModel:
        """As `ModelTable.select`."""
        return self._whole.select(name, version, may_use=self._key.may_use)


class PartialRegistry:
    """`ModelRegistry`, as far as management uses it; its methods raise ModelNotFoundError where the key may not use a
    model, and ForbiddenError where it would make one.
    """

    def __init__(self, whole: ModelRegistry, key: ApiKey) -> None:
        self.models = PartialModels(whole, key)
        self._whole = whole
        self._key = key

    @property
    def residence(self) -> Residence:
        """As `ModelRegistry.residence`: of all models."""
        return self._whole.residence

    @property
    def running(self) -> Sequence[ServedModel]:
        """As `ModelRegistry.running`: of all models."""
        return self._whole.running

    def describe(self, name: str, version: str | None = None) -> Sequence[ModelDescription]:
        """As `ModelRegistry.describe`."""
        self.models.select(name)
        return self._whole.describe(name, version)

    def register(
        self, spec: ModelSpec, known: ModelConfig | None = None, *, stays: bool = True
    ) -> asyncio.Task[ServedModel]:
        """As `ModelRegistry.register`."""
        if not self._key.may_use(spec.name):
            raise ForbiddenError(f"the API key is for other models than {spec.name!r}")
        return self._whole.register(spec, known, stays=stays)

    def reload(self, name: str, version: str, spec: ModelSpec, *, keep_workers: bool) -> asyncio.Task[ServedModel]:
        """As `ModelRegistry.reload`."""
        self.models.select(name)
        return self._whole.reload(name, version, spec, keep_workers=keep_workers)

    def scale(self, name: str, version: str, *, min_workers: int, max_workers: int) -> asyncio.Task[ServedModel]:
        """As `ModelRegistry.scale`."""
        self.models.select(name)
        return self._whole.scale(name, version, min_workers=min_workers, max_workers=max_workers)

    def release(self, key: Key) -> asyncio.Task[bool]:
        """As `ModelRegistry.release`."""
        self.models.select(key[0])
        return self._whole.release(key)

    def unregister(self, name: str, version: str | None = None) -> asyncio.Task[Any]:
        """As `ModelRegistry.unregister`."""
        unloaded = [model.config for model in self._whole.unloaded]
        gone = any(config.name == name and version in (None, config.version) for config in unloaded)
        if not gone or not self._key.may_use(name):
            self.models.select(name, version or "")
        return self._whole.unregister(name, version)

    def change_adapter(self, name: str, change: AdapterOperation) -> asyncio.Task[None]:
        """As `ModelRegistry.change_adapter`."""
        return self._whole.change_adapter(self.models.select(name).config.name, change)
