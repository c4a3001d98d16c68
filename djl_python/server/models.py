"""The models of this server, by name and version, and which one a request means.

Runs in the front end.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import ModelNotFoundError, ModelNotNamedError
from .supervisor import ServedModel


class Models:
    """The registered models. Of several versions of a name, the one registered last answers requests without one."""

    def __init__(self, default_model: str = "") -> None:
        self._default_model = default_model
        self._by_name: dict[str, dict[str, ServedModel]] = {}

    def add(self, model: ServedModel) -> None:
        """Register a model; name and version are not taken yet."""
        versions = self._by_name.setdefault(model.config.name, {})
        assert model.config.version not in versions
        versions[model.config.version] = model

    def __iter__(self) -> Iterator[ServedModel]:
        for versions in self._by_name.values():
            yield from versions.values()

    def __len__(self) -> int:
        return sum(len(versions) for versions in self._by_name.values())

    def select(self, name: str, version: str = "") -> ServedModel:
        """The model that a request means; "" where it names none.

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
        if version not in versions:
            known = ", ".join(known or "(none)" for known in versions)
            raise ModelNotFoundError(f"model {name!r} has no version {version!r}; its versions: {known}")
        return versions[version]

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
