"""Whether the alternatives of a schema's `oneOf` have instances in common. Runs in the worker.

The answer is on the safe side: two schemas are only said to share none where their keywords prove it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ..core.budgets import SCHEMA_COMPARISONS
from .json_instances import Instances, count_in, mapping, names_in

#: Types by the keyword `type`; an integer is a number too.
_TYPES: Final = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))
#: Alternatives of a `oneOf` that are compared with each other.
_MOST_ALTERNATIVES: Final = 100


class _Facts(msgspec.Struct, frozen=True):
    """What is compared of a schema.

    Attributes:
        types: those that an instance may have.
        listed: the names of its properties.
        values: for each of them that lists its values, these, encoded.
        required: names.
        told: the names of `required` that have `values`.
        closed: whether an object has only listed properties, and may have as few as there are.
    """

    types: frozenset[str]
    listed: frozenset[str]
    values: Mapping[str, frozenset[str]]
    required: frozenset[str]
    distinguishing: tuple[str, ...]
    closed: bool


class Alternatives:
    """Compares the alternatives in one schema. What is known of one is found out once, and kept.

    Args:
        closing: whether objects that don't mention others than their listed properties will have none.

    Attributes:
        left: how many of `SCHEMA_COMPARISONS` are left.
    """

    def __init__(self, instances: Instances, *, closing: bool) -> None:
        self.left = SCHEMA_COMPARISONS.most
        self._instances = instances
        self._closing = closing
        self._facts: dict[int, _Facts] = {}

    def overlap(self, parts: Sequence[Any]) -> bool:
        """Whether an instance of one of these, closed, could also be one of another, as it was. True, too, if there
        are too many to be compared."""
        if len(parts) < 2:
            return False
        if len(parts) > _MOST_ALTERNATIVES:
            return True
        followed = [self._instances.followed(part) for part in parts]
        if not all(isinstance(schema, Mapping) for schema in followed):
            return True
        facts = [self._facts_of(schema) for schema in followed]
        if _told_apart(facts):
            return False
        return not all(
            self._apart(narrow, wide) for i, narrow in enumerate(facts) for k, wide in enumerate(facts) if i != k
        )

    def _apart(self, narrow: _Facts, wide: _Facts) -> bool:
        """Whether no instance of `narrow` is one of `wide`."""
        self.left -= 1
        if self.left < 0:
            return False
        if not narrow.types & wide.types:
            return True
        if narrow.types != {"object"}:
            return False
        for name in narrow.distinguishing:
            one, other = narrow.values[name], wide.values.get(name)
            self.left -= 1 if other is None else min(len(one), len(other))
            if other is not None and one.isdisjoint(other):
                return True
        self.left -= len(wide.required)
        return narrow.closed and bool(wide.required - narrow.listed - narrow.required)

    def _facts_of(self, schema: Mapping[str, Any]) -> _Facts:
        if id(schema) not in self._facts:
            self._facts[id(schema)] = self._found_out(schema)
        return self._facts[id(schema)]

    def _found_out(self, schema: Mapping[str, Any]) -> _Facts:
        listed, required = mapping(schema.get("properties")), names_in(schema.get("required"))
        values = {
            name: _encoded(allowed) for name, property in listed.items() if (allowed := _values(property)) is not None
        }
        open_to_others = schema.get("additionalProperties", not (self._closing and listed)) is not False
        few = count_in(schema.get("minProperties")) <= len(listed)
        return _Facts(
            types=frozenset(_types(schema)),
            listed=frozenset(listed),
            values=values,
            required=frozenset(required),
            distinguishing=tuple(name for name in dict.fromkeys(required) if name in values),
            closed=not open_to_others and "patternProperties" not in schema and few,
        )


def _told_apart(facts: Sequence[_Facts]) -> bool:
    """Whether all of them are objects, with a required property that has no value in two of them."""
    if not all(fact.types == {"object"} for fact in facts):
        return False
    names = frozenset(facts[0].distinguishing).intersection(*(fact.distinguishing for fact in facts[1:]))
    return any(_disjoint([fact.values[name] for fact in facts]) for name in names)


def _disjoint(sets: Sequence[frozenset[str]]) -> bool:
    return sum(map(len, sets)) == len(frozenset().union(*sets))


def _types(schema: Mapping[str, Any]) -> set[str]:
    """The types that an instance may have."""
    named = schema.get("type")
    if values := _values(schema):
        types = {_type_of(value) for value in values}
    else:
        names = [name for name in (named if isinstance(named, list) else [named]) if isinstance(name, str)]
        types = set(names) & _TYPES or set(_TYPES)
    return types | {"integer"} if "number" in types else types


def _type_of(value: Any) -> str:
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", type(None): "null"}
    return kinds.get(type(value), "object")


def _values(schema: Any) -> list[Any] | None:
    """The only instances that a schema may have; None: it does not list them."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _encoded(values: list[Any]) -> frozenset[str]:
    """JSON values in a form that can be compared: 1 and 1.0 are the same."""
    return frozenset(json.dumps(_whole(value), sort_keys=True) for value in values)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
