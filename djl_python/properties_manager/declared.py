"""What DJL's classes of settings and of chat parameters have in common: annotated fields, converted from text.

Runs in the worker.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, get_origin, get_type_hints

import msgspec

_MISSING = object()


class Declared:
    """Keyword arguments as typed attributes, as DJL's own classes have them; subclass it to add fields.

    An annotated class attribute is a field, its value the default. Text is converted to the field's type, as in
    serving.properties ("true", "8"); arguments without a field are ignored.

    Raises:
        ValueError: an argument does not have its field's type, or one without default is missing.
    """

    #: Field -> its name in `model_dump(by_alias=True)`.
    aliases: ClassVar[Mapping[str, str]] = {}
    #: Fields that `model_dump` never has.
    hidden: ClassVar[Collection[str]] = ()

    def __init__(self, **given: Any) -> None:
        given = self.read(dict(given))
        for name, annotation in self._fields():
            value = given.get(name, getattr(type(self), name, _MISSING))
            if value is _MISSING:
                raise ValueError(f"{type(self).__name__}: {name} is missing")
            setattr(self, name, self._converted(name, value, annotation) if name in given else copy.copy(value))
        self.check()

    def read(self, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments, before they become fields. For subclasses."""
        return given

    def check(self) -> None:
        """Check and complete the fields. For subclasses.

        Raises:
            ValueError: they contradict each other.
        """

    def model_dump(
        self, by_alias: bool = False, exclude_none: bool = False, exclude: Collection[str] = ()
    ) -> dict[str, Any]:
        """The fields as a dict."""
        return {
            self.aliases.get(name, name) if by_alias else name: value
            for name, _ in self._fields()
            if name not in self.hidden and name not in exclude
            for value in (getattr(self, name),)
            if value is not None or not exclude_none
        }

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name, _ in self._fields())
        return f"{type(self).__name__}({shown})"

    @classmethod
    def _fields(cls) -> Iterator[tuple[str, Any]]:
        for name, annotation in get_type_hints(cls).items():
            if annotation is not ClassVar and get_origin(annotation) is not ClassVar:
                yield name, annotation

    def _converted(self, name: str, value: Any, annotation: Any) -> Any:
        try:
            return msgspec.convert(value, annotation, strict=False)
        except msgspec.ValidationError as exc:
            raise ValueError(f"{type(self).__name__}: {name}={value!r}: {exc}") from exc
