"""Check and complete the JSON schemas that constrain generation. Runs in the worker."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any, Final

import msgspec

from ..core.errors import ParameterError
from .json_alternatives import Alternatives
from .json_instances import Instances, list_in, mapping, names_in
from .json_size import SchemaSize

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
#: Choices of properties for all of a schema's `minProperties` and `maxProperties`, multiplied: generation tries all of
#: them. Where there are more, an object has the first.
_MOST_CHOICES: Final = 64
#: Values of `$schema` that name no particular draft.
_ANY_DRAFT: Final = ("http://json-schema.org/schema", "https://json-schema.org/schema")


def check(schema: Mapping[str, Any], field: str, size: SchemaSize | None = None) -> None:
    """Refuse a schema that is too large (`SchemaSize`), has no instance that ends, or has bounds that generation would
    not keep exactly.

    Args:
        size: what the request's other schemas have.

    Raises:
        ParameterError: with `field` and what was expected.
    """
    (size or SchemaSize()).add(schema, field)
    if not Instances(schema).has_finite(schema):
        raise ParameterError(
            f"{field}: no text is an instance of this schema: each would have to contain another", field
        )
    for subschema in _subschemas(schema):
        if _free_keys(subschema) > 1:
            raise ParameterError(
                f"{field}: expected a minProperties that the listed properties reach, or all but one, got "
                f"{subschema['minProperties']}: generation can't keep keys that are not listed from being the same",
                field,
            )
        for name in _LOWER + _UPPER:
            if not _is_kept(bound := subschema.get(name), lower=name in _LOWER):
                raise ParameterError(f"{field}: expected a {name} that a 64-bit number holds, got {bound}", field)


def _subschemas(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A schema and all its subschemas, each before those in it."""
    left = [schema]
    while left:
        subschema = left.pop()
        yield subschema
        left += reversed([part for key, value in subschema.items() for part in _within(key, value)])


def _free_keys(schema: Mapping[str, Any]) -> int:
    """How many keys that it does not list an object must have."""
    least, (_, required, optional) = schema.get("minProperties"), _properties(schema)
    return least - len(required) - len(optional) if isinstance(least, int) else 0


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
    """The schema for generation: its instances are some of the client's schema's, and easier to write to an end.

    - `type: object` and `additionalProperties: false` are added wherever properties are listed. A schema that lists
      properties means an object, with or without a type: TGI's own examples have none. Most schemas that do not mention
      additional properties want none: TGI generates none, and OpenAI requires strict schemas to forbid them. Objects
      that do mention them, or list no properties, stay as they are, and so do those that need more properties than they
      list. What is required and not listed may be anything. A schema that combines several into one object gets no
      `additionalProperties`, as a part can't tell what the others list; and where `oneOf`'s alternatives are only
      distinct for being closed, they stay open.
    - What has no finite instance is left out: a model that began one could never end it.
    - `minProperties` and `maxProperties` about listed properties become alternatives, which generation can count.
    - References that mean the same are spelled the same, so that a reader can count distinct ones.
    - A `$schema` that names no draft is dropped, and so are a `format` that JSON Schema does not define, and keywords
      that say nothing (`_ALWAYS_MET`).
    """
    instances, others = Instances(schema), not _composes(schema)
    closing = _Closing(instances, others=others, types=not _overlaps(schema, instances, closing=others))
    closed_schema = closing.closed(schema)
    if str(closed_schema.get("$schema", "")).rstrip("#") in _ANY_DRAFT:
        del closed_schema["$schema"]
    return closed_schema


def _composes(schema: Mapping[str, Any]) -> bool:
    """Whether the schema, or a subschema, combines several schemas into one object."""
    parts = schema.get("allOf")
    if isinstance(parts, list) and (len(parts) > 1 or "properties" in schema):
        return True
    if _COMPOSING & schema.keys() or ("properties" in schema and _ALTERNATIVES & schema.keys()):
        return True
    return any(_composes(subschema) for key, value in schema.items() for subschema in _within(key, value))


def _within(key: str, value: Any) -> Iterator[Mapping[str, Any]]:
    """The schemas directly in the value of a keyword."""
    if key in _DATA:
        return
    values = value.values() if key in _NAMED and isinstance(value, Mapping) else (value,)
    for element in values:
        yield from (item for item in (element if isinstance(element, list) else [element]) if isinstance(item, Mapping))


def with_subschemas(
    schema: Mapping[str, Any], change: Callable[[Mapping[str, Any]], Any], kept: Set[str] = frozenset()
) -> dict[str, Any]:
    """The schema with what `change` makes of each schema directly in it; keywords with data, or `kept`, stay.

    >>> with_subschemas({"items": {"a": 1}, "const": {"a": 1}}, lambda one: {**one, "b": 2})
    {'items': {'a': 1, 'b': 2}, 'const': {'a': 1}}
    """

    def changed(value: Any) -> Any:
        if isinstance(value, list):
            return [changed(item) for item in value]
        return change(value) if isinstance(value, Mapping) else value

    return {
        key: value
        if key in _DATA or key in kept
        else {name: changed(subschema) for name, subschema in value.items()}
        if key in _NAMED and isinstance(value, Mapping)
        else changed(value)
        for key, value in schema.items()
    }


def _overlaps(schema: Mapping[str, Any], instances: Instances, *, closing: bool) -> bool:
    """Whether an instance of one of a `oneOf`'s alternatives, closed, could also be one of another, as it was."""
    alternatives = Alternatives(instances, closing=closing)
    return any(alternatives.overlap(list_in(subschema.get("oneOf"))) for subschema in _subschemas(schema))


class _Closing(msgspec.Struct):
    """How a schema is closed.

    Attributes:
        others: whether objects may be closed to others than their listed properties.
        types: whether anything may be added to what lists properties.
        choices: what is left of `_MOST_CHOICES`.
    """

    instances: Instances
    others: bool
    types: bool
    choices: int = _MOST_CHOICES

    def closed(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        effective = {key: value for key, value in schema.items() if value not in _ALWAYS_MET.get(key, ())}
        rewritten = with_subschemas(effective, self._ended, kept=_CONDITIONS)
        if isinstance(format_ := rewritten.get("format"), str) and format_ not in _FORMATS:
            del rewritten["format"]
        if isinstance(reference := rewritten.get("$ref"), str):
            rewritten["$ref"] = self.instances.canonical(reference)
        if self.types:
            if "properties" in schema:
                rewritten.setdefault("type", "object")
            if self.others and schema.keys() & {"properties", "patternProperties"}:
                self._close(rewritten)
        return self._counted(rewritten) if rewritten.get("type") == "object" else rewritten

    def _close(self, schema: dict[str, Any]) -> None:
        """Have an object hold what it lists, and what it requires."""
        listed, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        if "additionalProperties" in schema or not (isinstance(patterns, dict) and isinstance(listed, dict)):
            return
        unlisted = [name for name in _properties(schema)[1] if name not in listed]
        if unlisted:  # a pattern that matches one says more of it
            schema["properties"] = listed = listed | {name: {} for name in unlisted}
        least = schema.get("minProperties", 0)
        if not (isinstance(least, int) and least > len(listed)):
            schema["additionalProperties"] = False

    def _counted(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The schema with alternatives, sets of properties, in place of `minProperties` and `maxProperties`."""
        return self._with_few(self._with_enough(schema))

    def _with_enough(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The schema with the properties required that reach its `minProperties`, one choice of them or another."""
        least, (listed, required, optional) = schema.get("minProperties"), _properties(schema)
        if not isinstance(least, int) or not (listed or required):
            return schema  # keys of the model's own: generation counts them
        missing = least - len(required)
        rest = {key: value for key, value in schema.items() if key != "minProperties"}
        if missing <= 0:
            return rest
        if missing > len(optional):
            return {**schema, "required": [*required, *optional]}
        if missing == len(optional) or not self._can_choose(math.comb(len(optional), missing)):
            return {**rest, "required": [*required, *optional[:missing]]}
        return _with_any(rest, [{"required": [*more]} for more in itertools.combinations(optional, missing)])

    def _with_few(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The schema without those of its properties that exceed its `maxProperties`, one choice of them or another."""
        most, (listed, required, optional) = schema.get("maxProperties"), _properties(schema)
        closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
        if not isinstance(most, int) or not closed or most < len(required):  # then there is no instance, as is found
            return schema
        rest = {key: value for key, value in schema.items() if key != "maxProperties"}
        excess = len(required) + len(optional) - most
        if excess <= 0:
            return rest
        if excess == len(optional) or not self._can_choose(math.comb(len(optional), excess)):
            return {**rest, "properties": {**listed, **dict.fromkeys(optional[-excess:], False)}}
        without = ({"properties": dict.fromkeys(names, False)} for names in itertools.combinations(optional, excess))
        return _with_any(rest, list(without))

    def _can_choose(self, choices: int) -> bool:
        """Take a choice among so many, unless all choices together would be too many."""
        if choices > self.choices:
            return False
        self.choices //= choices
        return True

    def _ended(self, schema: Mapping[str, Any]) -> dict[str, Any] | bool:
        return self.closed(schema) if self.instances.has_finite(schema) else False


def _with_any(schema: dict[str, Any], choices: list[dict[str, Any]]) -> dict[str, Any]:
    """The schema, of which one of `choices` must hold too."""
    if "anyOf" not in schema:
        return {**schema, "anyOf": choices}
    return {**schema, "allOf": [*list_in(schema.get("allOf")), {"anyOf": choices}]}


def _properties(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str], list[str]]:
    """The listed properties, the names of those that are required, and of those that need not be there."""
    listed, required = mapping(schema.get("properties")), list(dict.fromkeys(names_in(schema.get("required"))))
    needed = frozenset(required)
    return (
        listed,
        required,
        [name for name, subschema in listed.items() if name not in needed and subschema is not False],
    )
