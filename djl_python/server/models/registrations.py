"""The records of all registered models, found by name and version, and of those that can be registered again.

Runs in the front end's event loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...core.errors import ModelNotFoundError
from .operations import Key
from .registration import Registration
from .served_model import ServedModel
from .table import ModelTable


class Registrations:
    """The registrations of a server.

    Attributes:
        models: their present instances, which requests find.
        unloaded: those that have ended, and can begin again.
    """

    def __init__(self, default_model: str) -> None:
        self.models = ModelTable(default_model)
        self.unloaded = Unloaded()
        self._by_key: dict[Key, Registration] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._by_key

    def __getitem__(self, key: Key) -> Registration:
        return self._by_key[key]

    def __iter__(self) -> Iterator[Registration]:
        return iter(self._by_key.values())

    def add(self, registration: Registration) -> None:
        """Begin a registration."""
        self._by_key[registration.key] = registration
        self.unloaded.discard(registration.key)
        self.models.put(registration.model, at_startup=registration.at_startup)

    def remove(self, registration: Registration) -> None:
        """End a registration: requests do not find its model any more."""
        del self._by_key[registration.key]
        self.models.remove(registration.model)

    def select(self, name: str, version: str) -> Registration:
        """A version of a model.

        Args:
            version: "" for the one without a version, else the one that requests get that name none.

        Raises:
            ModelNotFoundError: there is no such model.
        """
        if (name, version) in self._by_key:
            return self._by_key[name, version]
        config = self.models.select(name, version).config
        return self._by_key[config.name, config.version]

    def find(self, name: str, version: str | None) -> Sequence[Registration]:
        """A model's versions, in order of registration, or one of them.

        Args:
            version: None for all, "" for the one without a version.

        Raises:
            ModelNotFoundError: there is no such model.
        """
        if version:
            models: Sequence[ServedModel] = [self.models.select(name, version)]
        elif not (models := self.models.versions(name)):
            raise ModelNotFoundError(f"there is no model {name!r}; {self.models.loaded}")
        if version == "":
            versions = ", ".join(model.config.version for model in models)
            models = [model for model in models if not model.config.version]
            if not models:
                raise ModelNotFoundError(f"there is no model {name!r} without a version; its versions: {versions}")
        return [self._by_key[model.config.name, model.config.version] for model in models]


class Unloaded:
    """Ended registrations that can begin again, in the order in which they ended."""

    def __init__(self) -> None:
        self._by_key: dict[Key, Registration] = {}

    def __iter__(self) -> Iterator[Registration]:
        return iter(self._by_key.values())

    @property
    def names(self) -> Sequence[str]:
        """The names of the models, each once."""
        return list(dict.fromkeys(name for name, _ in self._by_key))

    def versions(self, name: str) -> Sequence[Registration]:
        """Those of a model; none where there is none."""
        return [registration for registration in self if registration.spec.name == name]

    def add(self, registrations: Sequence[Registration]) -> None:
        """Keep them."""
        self._by_key |= {registration.key: registration for registration in registrations}

    def discard(self, key: Key) -> None:
        """Forget one, if it is there."""
        self._by_key.pop(key, None)

    def forget(self, name: str, version: str | None) -> bool:
        """Forget a model, or one version of it; whether it was there."""
        gone = [
            registration.key for registration in self.versions(name) if version in (None, registration.spec.version)
        ]
        for key in gone:
            self.discard(key)
        return bool(gone)
