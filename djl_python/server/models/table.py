"""The table of registered models, by name and version; it selects the model of a request.

Runs in the front end's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...core.errors import ModelNotFoundError, ModelNotNamedError
from .served_model import ServedModel

#: Whether somebody may use a model of this name.
MayUse = Callable[[str], bool]


def everybody(name: str) -> bool:
    """Any model may be used."""
    return True


class ModelTable:
    """The registered models. A request that names no version is answered by the version registered last."""

    def __init__(self, default_model: str = "") -> None:
        self._default_model = default_model
        self._at_startup: set[str] = set()
        self._by_name: dict[str, dict[str, ServedModel]] = {}

    def put(self, model: ServedModel, *, at_startup: bool = False) -> None:
        """Add a model, in the place of the one that has its name and version, if there is one.

        Args:
            at_startup: whether the server began with it. A later model takes no requests that name no model from the
                only one at startup, as in DJL.
        """
        if at_startup:
            self._at_startup.add(model.config.name)
        self._by_name.setdefault(model.config.name, {})[model.config.version] = model

    def remove(self, model: ServedModel) -> None:
        """Remove a model, which is in the table."""
        versions = self._by_name[model.config.name]
        del versions[model.config.version]
        if not versions:
            del self._by_name[model.config.name]
            self._at_startup.discard(model.config.name)

    def __iter__(self) -> Iterator[ServedModel]:
        for versions in self._by_name.values():
            yield from versions.values()

    def __len__(self) -> int:
        return sum(len(versions) for versions in self._by_name.values())

    @property
    def several(self) -> bool:
        """Whether there are models of several names: a request must name one then, unless there is a default."""
        return len(self._by_name) > 1

    @property
    def bodies_choose(self) -> bool:
        """Whether what a request's body names may decide which model answers: one of several, or the version of one
        that has an adapter."""
        return self.several or (len(self) > 1 and any(model.config.adapters for model in self))

    @property
    def only(self) -> ServedModel | None:
        """The model of every request, and of errors that arise before a model is selected; None: several, or none."""
        return None if len(self._by_name) != 1 else self.select("")

    @property
    def names(self) -> Sequence[str]:
        """The names of the models, in order of registration."""
        return list(self._by_name)

    def versions(self, name: str) -> Sequence[ServedModel]:
        """Every version of a model, in order of registration; none where there is no such model."""
        return list(self._by_name.get(name, {}).values())

    def select(self, name: str, version: str = "", unversioned: str = "", may_use: MayUse = everybody) -> ServedModel:
        """The model that a request means; "" where it names none. `unversioned` also finds a model without a version.

        Args:
            may_use: what the sender may use: there are no others for them, in errors neither.

        Raises:
            ModelNotFoundError: no model or version of this name.
            ModelNotNamedError: the request must name one.
        """
        if not name:
            name = self._only_name(may_use)
        versions = self._by_name.get(name) if may_use(name) else None
        if versions is None:
            raise ModelNotFoundError(f"there is no model {name!r}; {self.loaded_for(may_use)}")
        if not version:
            return versions[next(reversed(versions))]
        if version not in versions and version == unversioned and "" in versions:
            return versions[""]
        if version not in versions:
            known = ", ".join(known or unversioned or "(none)" for known in versions)
            raise ModelNotFoundError(f"model {name!r} has no version {version!r}; its versions: {known}")
        return versions[version]

    def meant(self, name: str, version: str = "", unversioned: str = "", may_use: MayUse = everybody) -> ServedModel:
        """As `select`, where a LoRA adapter's name stands for the model that has it, if no model has the name itself.

        Of several versions, the one registered last of those that have the adapter is meant: another would answer as
        the base model.
        """
        for model in self.adapted(name, may_use):
            if version in ("", model.config.version) or (version == unversioned and not model.config.version):
                return model
        return self.select(name, version, unversioned, may_use)

    def adapted(self, name: str, may_use: MayUse = everybody) -> Sequence[ServedModel]:
        """Those versions of a model that have a LoRA adapter of this name, the one registered last first; none where a
        model has the name itself."""
        if name in self._by_name:
            return []
        for owner, versions in self._by_name.items():
            having = [model for model in reversed(versions.values()) if name in model.config.adapters]
            if having and may_use(owner):
                return having
        return []

    @property
    def loaded(self) -> str:
        """The names of the models, for messages."""
        return self.loaded_for(everybody)

    def loaded_for(self, may_use: MayUse) -> str:
        """The names of the models that somebody may use, for messages to them."""
        names = [name for name in self._by_name if may_use(name)]
        return f"loaded: {', '.join(names)}" if names else "no model is loaded"

    def _only_name(self, may_use: MayUse) -> str:
        name = self._usual_name()
        if name and may_use(name):
            return name
        if not any(map(may_use, self._by_name)):
            raise ModelNotFoundError("no model is loaded")
        raise ModelNotNamedError(f"Parameter model_name is required: {self.loaded_for(may_use)}")

    def _usual_name(self) -> str:
        """The name of the model of requests that name none; "" if there is none such."""
        if len(self._by_name) == 1:
            return next(iter(self._by_name))
        if self._default_model:
            return self._default_model
        first = self._at_startup & self._by_name.keys()
        return next(iter(first)) if len(first) == 1 else ""
