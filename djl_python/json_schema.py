"""JSON schemas as clients mean them where text is generated from them. Runs in the worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from .errors import ParameterError

#: Objects and arrays within one another: far more than a schema has, and no strain on a recursive reader.
MAX_DEPTH: Final = 100
#: Keywords whose value is data, not a schema.
_DATA: Final = frozenset(("const", "default", "enum", "examples"))
#: Keywords whose value holds schemas by names of the client's choosing.
_NAMED: Final = frozenset(("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"))
#: Keywords that put an object together of several schemas.
_COMPOSING: Final = frozenset(("dependentSchemas", "else", "if", "not", "then", "unevaluatedProperties"))
#: The same, where there are properties beside them.
_ALTERNATIVES: Final = frozenset(("$ref", "anyOf", "oneOf"))


def check_depth(schema: Mapping[str, Any], field: str) -> None:
    """Refuse what is nested more deeply than any reader of schemas can follow.

    Raises:
        ParameterError: it is; names `field`.
    """
    level: list[Any] = [schema]
    for _ in range(MAX_DEPTH):
        level = [item for one in level for item in (one.values() if isinstance(one, Mapping) else one)]
        level = [item for item in level if isinstance(item, Mapping | list)]
        if not level:
            return
    raise ParameterError(f"{field}: expected a JSON schema of at most {MAX_DEPTH} levels", field)


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The same schema, with objects that have no properties but those they list.

    Most schemas that say nothing of further properties want none: TGI generates none, and OpenAI has its strict schemas
    say so. Objects that do say it, or list no properties, stay as they are; so does all of a schema that puts objects
    together of several, where a part can't tell what the others list. What is generated is an instance of the schema
    that the client sent in any case.
    """
    return dict(schema) if _composes(schema) else _closed(schema)


def _composes(schema: Mapping[str, Any]) -> bool:
    """Whether it, or one within it, puts an object together of several schemas."""
    parts = schema.get("allOf")
    if isinstance(parts, list) and (len(parts) > 1 or "properties" in schema):
        return True
    if _COMPOSING & schema.keys() or ("properties" in schema and _ALTERNATIVES & schema.keys()):
        return True
    return any(_composes(one) for key, value in schema.items() for one in _within(key, value))


def _within(key: str, value: Any) -> Iterator[Mapping[str, Any]]:
    """The schemas in the value of a keyword."""
    if key in _DATA:
        return
    values = value.values() if key in _NAMED and isinstance(value, Mapping) else (value,)
    for one in values:
        yield from (item for item in (one if isinstance(one, list) else [one]) if isinstance(item, Mapping))


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: _closed_value(key, value) for key, value in schema.items()}
    if "properties" in schema:
        found.setdefault("additionalProperties", False)
    return found


def _closed_value(key: str, value: Any) -> Any:
    if key in _DATA:
        return value
    if key in _NAMED and isinstance(value, Mapping):
        return {name: _closed_value("", one) for name, one in value.items()}
    if isinstance(value, list):
        return [_closed_value("", item) for item in value]
    return _closed(value) if isinstance(value, Mapping) else value
