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
#: Keywords whose schema is none that the value is an instance of: what narrows it may widen the whole.
_CONDITIONS: Final = frozenset(("if", "not"))
#: Keywords that put an object together of several schemas.
_COMPOSING: Final = frozenset(("dependentSchemas", "else", "if", "not", "then", "unevaluatedProperties"))
#: The same, where there are properties beside them.
_ALTERNATIVES: Final = frozenset(("$ref", "anyOf", "oneOf"))
#: Bounds of numbers, and the first and the last integer that they can have.
_LOWER: Final = ("minimum", "exclusiveMinimum")
_UPPER: Final = ("maximum", "exclusiveMaximum")
_INTEGERS: Final = (-(2**63), 2**63 - 1)
#: What `$schema` says where it names no particular draft.
_ANY_DRAFT: Final = ("http://json-schema.org/schema", "https://json-schema.org/schema")


def check(schema: Mapping[str, Any], field: str) -> None:
    """Refuse a schema whose instances can't be generated: `check_depth`, and bounds that would not be kept exactly.

    Raises:
        ParameterError: with `field` and what was expected.
    """
    check_depth(schema, field)
    for one in _subschemas(schema):
        for name in _LOWER + _UPPER:
            if not _is_kept(bound := one.get(name), lower=name in _LOWER):
                raise ParameterError(f"{field}: expected a {name} that a 64-bit number holds, got {bound}", field)


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


def _subschemas(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A schema, and those within it."""
    yield schema
    for key, value in schema.items():
        for one in _within(key, value):
            yield from _subschemas(one)


def _is_kept(bound: Any, *, lower: bool) -> bool:
    """Whether a number within this bound, as the generator of numbers has it, is within the client's.

    It has a bound as the nearest 64-bit float and, of integers, nothing beyond their 64 bits.
    """
    if not isinstance(bound, int | float) or isinstance(bound, bool):
        return True
    if not _INTEGERS[0] <= bound <= _INTEGERS[1]:
        return (bound < 0) == lower
    nearest = min(float(bound), _INTEGERS[1]) if isinstance(bound, int) else bound
    return nearest >= bound if lower else nearest <= bound


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The same schema, where properties are those of an object, which has no others.

    Who lists properties means an object, whether a type says so or not: TGI's own examples have none. Most schemas that
    say nothing of further properties want none: TGI generates none, and OpenAI has its strict schemas say so. Objects
    that do say it, or list no properties, stay as they are; so do all of a schema that puts objects together of
    several, where a part can't tell what the others list. What is generated is an instance of the schema that the
    client sent in any case.
    """
    found = _closed(schema, may_have_others=_composes(schema))
    if str(found.get("$schema", "")).rstrip("#") in _ANY_DRAFT:
        del found["$schema"]
    return found


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


def _closed(schema: Mapping[str, Any], may_have_others: bool) -> dict[str, Any]:
    found = {key: _closed_value(key, value, may_have_others) for key, value in schema.items()}
    if "properties" in schema:
        found.setdefault("type", "object")
        if not may_have_others:
            found.setdefault("additionalProperties", False)
    return found


def _closed_value(key: str, value: Any, may_have_others: bool) -> Any:
    if key in _DATA or key in _CONDITIONS:
        return value
    if key in _NAMED and isinstance(value, Mapping):
        return {name: _closed_value("", one, may_have_others) for name, one in value.items()}
    if isinstance(value, list):
        return [_closed_value("", item, may_have_others) for item in value]
    return _closed(value, may_have_others) if isinstance(value, Mapping) else value
