"""Check and complete the JSON schemas that constrain generation. Runs in the worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from .errors import ParameterError

#: Nested objects and arrays: far more than real schemas have, and safe for recursive readers.
MAX_DEPTH: Final = 100
#: Keywords whose value is data, not a schema.
_DATA: Final = frozenset(("const", "default", "enum", "examples"))
#: Keywords whose value maps names that the client chooses to schemas.
_NAMED: Final = frozenset(("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"))
#: Keywords whose schema the value need not match: narrowing that schema may widen the whole.
_CONDITIONS: Final = frozenset(("if", "not"))
#: Keywords that combine several schemas into one object.
_COMPOSING: Final = frozenset(("dependentSchemas", "else", "if", "not", "then", "unevaluatedProperties"))
#: Keywords that do so where `properties` stands beside them.
_ALTERNATIVES: Final = frozenset(("$ref", "anyOf", "oneOf"))
#: Keywords that bound numbers, and the smallest and largest integer that a bound can be.
_LOWER: Final = ("minimum", "exclusiveMinimum")
_UPPER: Final = ("maximum", "exclusiveMaximum")
_INTEGERS: Final = (-(2**63), 2**63 - 1)
#: Formats that JSON Schema defines. To a validator, others (OpenAPI's `password`, Pydantic's `path`) say nothing.
_FORMATS: Final = frozenset(
    "date-time date time duration email idn-email hostname idn-hostname ipv4 ipv6 uri uri-reference iri iri-reference "
    "uuid uri-template json-pointer relative-json-pointer regex".split()
)
#: Keywords that generation lacks, and their values that every JSON text meets: generators of schemas write them.
_ALWAYS_MET: Final[Mapping[str, tuple[Any, ...]]] = {
    "uniqueItems": (False,),
    "propertyNames": (True, {}, {"type": "string"}),
}
#: Values of `$schema` that name no particular draft.
_ANY_DRAFT: Final = ("http://json-schema.org/schema", "https://json-schema.org/schema")


def check(schema: Mapping[str, Any], field: str) -> None:
    """Refuse a schema that is nested too deeply (`check_depth`), or has bounds that generation would not keep exactly.

    Raises:
        ParameterError: with `field` and what was expected.
    """
    check_depth(schema, field)
    for one in _subschemas(schema):
        for name in _LOWER + _UPPER:
            if not _is_kept(bound := one.get(name), lower=name in _LOWER):
                raise ParameterError(f"{field}: expected a {name} that a 64-bit number holds, got {bound}", field)


def check_depth(schema: Mapping[str, Any], field: str) -> None:
    """Refuse a schema nested more than `MAX_DEPTH` levels deep, which readers of schemas can't follow.

    Raises:
        ParameterError: the schema is too deep; names `field`.
    """
    level: list[Any] = [schema]
    for _ in range(MAX_DEPTH):
        level = [item for one in level for item in (one.values() if isinstance(one, Mapping) else one)]
        level = [item for item in level if isinstance(item, Mapping | list)]
        if not level:
            return
    raise ParameterError(f"{field}: expected a JSON schema of at most {MAX_DEPTH} levels", field)


def _subschemas(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A schema and all its subschemas."""
    yield schema
    for key, value in schema.items():
        for one in _within(key, value):
            yield from _subschemas(one)


def _is_kept(bound: Any, *, lower: bool) -> bool:
    """Whether every number within the bound that the generator uses is also within the client's `bound`.

    The generator holds a bound as the nearest 64-bit float, and generates no integer beyond 64 bits.
    """
    if not isinstance(bound, int | float) or isinstance(bound, bool):
        return True
    if not _INTEGERS[0] <= bound <= _INTEGERS[1]:
        return (bound < 0) == lower
    nearest = min(float(bound), _INTEGERS[1])
    return nearest >= bound if lower else nearest <= bound


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with `type: object` and `additionalProperties: false` added wherever properties are listed.

    A schema that lists properties means an object, with or without a type: TGI's own examples have none. Most schemas
    that do not mention additional properties want none: TGI generates none, and OpenAI requires strict schemas to
    forbid them. Objects that do mention them, or list no properties, stay as they are. A schema that combines several
    into one object gets no `additionalProperties`, as a part can't tell what the others list. The generated value is an
    instance of the client's own schema in any case. A `$schema` that names no draft is dropped, and so are a `format`
    that JSON Schema does not define, and keywords that say nothing (`_ALWAYS_MET`).
    """
    found = _closed(schema, may_have_others=_composes(schema))
    if str(found.get("$schema", "")).rstrip("#") in _ANY_DRAFT:
        del found["$schema"]
    return found


def _composes(schema: Mapping[str, Any]) -> bool:
    """Whether the schema, or a subschema, combines several schemas into one object."""
    parts = schema.get("allOf")
    if isinstance(parts, list) and (len(parts) > 1 or "properties" in schema):
        return True
    if _COMPOSING & schema.keys() or ("properties" in schema and _ALTERNATIVES & schema.keys()):
        return True
    return any(_composes(one) for key, value in schema.items() for one in _within(key, value))


def _within(key: str, value: Any) -> Iterator[Mapping[str, Any]]:
    """The schemas directly in the value of a keyword."""
    if key in _DATA:
        return
    values = value.values() if key in _NAMED and isinstance(value, Mapping) else (value,)
    for one in values:
        yield from (item for item in (one if isinstance(one, list) else [one]) if isinstance(item, Mapping))


def _closed(schema: Mapping[str, Any], may_have_others: bool) -> dict[str, Any]:
    found = {
        key: _closed_value(key, value, may_have_others)
        for key, value in schema.items()
        if value not in _ALWAYS_MET.get(key, ())
    }
    if isinstance(format_ := found.get("format"), str) and format_ not in _FORMATS:
        del found["format"]
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
