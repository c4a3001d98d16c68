"""What the instances of a JSON schema are, as far as generation has to know. Runs in the worker.

Both answers are on the safe side: a schema is only said to have no finite instance, and two schemas are only said to
share none, where their keywords prove it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

#: Types by the keyword `type`; an integer is a number too.
_TYPES: Final = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))


class Instances:
    """What can be said of a schema and its subschemas.

    Args:
        root: the whole schema, in which references are looked up.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._ending: set[str] = set()  # references to schemas with a finite instance
        references = set(_references(root))
        self._resolves = not any("$id" in one for one in _parts(root) if one is not root)  # else from elsewhere
        needed_by: dict[str, set[str]] = {}
        for one in references:
            for other in set(_references(self._at(one))):
                needed_by.setdefault(other, set()).add(one)
        waiting = list(references)
        while waiting:  # up to the least fixed point: nothing is finite because it would be finite
            one = waiting.pop()
            if one not in self._ending and self.has_finite(self._at(one)):
                self._ending.add(one)
                waiting += needed_by.get(one, set()) - self._ending

    def has_finite(self, schema: Any) -> bool:
        """Whether a JSON text that ends may be an instance. Of `{"$ref": "#"}`, and of a node that requires another
        node, none is: a model that began one could never end it."""
        if not isinstance(schema, Mapping):
            return schema is not False
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in self._ending and self._at(reference) is not None:
            return False
        if not all(map(self.has_finite, list_in(schema.get("allOf")))):
            return False
        for keyword in ("anyOf", "oneOf"):
            if (parts := list_in(schema.get(keyword))) and not any(map(self.has_finite, parts)):
                return False
        if schema.get("type") == "object":
            listed = mapping(schema.get("properties"))
            return all(self.has_finite(listed.get(name)) for name in names_in(schema.get("required")))
        if schema.get("type") == "array" and not schema.get("prefixItems") and _count(schema.get("minItems")):
            return self.has_finite(schema.get("items"))
        return True

    def apart(self, narrow: Any, wide: Any, closing: bool) -> bool:
        """Whether no instance of `narrow` is one of `wide`.

        Args:
            closing: whether objects that don't mention others than their listed properties will have none.
        """
        narrow, wide = self._followed(narrow), self._followed(wide)
        if not (isinstance(narrow, Mapping) and isinstance(wide, Mapping)):
            return False
        if not _types(narrow) & _types(wide):
            return True
        if _types(narrow) != {"object"}:
            return False
        listed, others = mapping(narrow.get("properties")), mapping(wide.get("properties"))
        required = names_in(narrow.get("required"))
        for name in required:
            one, other = _values(listed.get(name)), _values(others.get(name))
            if one is not None and other is not None and not _encoded(one) & _encoded(other):
                return True
        open_to_others = narrow.get("additionalProperties", not (closing and listed)) is not False
        if open_to_others or "patternProperties" in narrow or _count(narrow.get("minProperties")) > len(listed):
            return False
        return any(name not in listed and name not in required for name in names_in(wide.get("required")))

    def _followed(self, schema: Any) -> Any:
        """What a schema that is nothing but a reference refers to."""
        seen = set[str]()
        while (
            isinstance(schema, Mapping) and isinstance(reference := schema.get("$ref"), str) and reference not in seen
        ):
            seen.add(reference)
            schema = self._at(reference)
        return schema

    def _at(self, reference: str) -> Any:
        """The schema at a JSON pointer, `#/...`; None: it is another kind of reference, or nothing is there."""
        if not self._resolves or not reference.startswith("#") or (len(reference) > 1 and reference[1] != "/"):
            return None
        found: Any = self._root
        for part in unquote(reference).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and name in found:
                found = found[name]
            elif isinstance(found, list) and re.fullmatch("[0-9]{1,6}", name) and int(name) < len(found):
                found = found[int(name)]
            else:
                return None
        return found


def _parts(value: Any) -> Iterator[Mapping[str, Any]]:
    """All objects in a value."""
    level = [value]
    while level:
        one = level.pop()
        if isinstance(one, Mapping):
            yield one
            level += one.values()
        elif isinstance(one, list):
            level += one


def _references(value: Any) -> Iterator[str]:
    return (one["$ref"] for one in _parts(value) if isinstance(one.get("$ref"), str))


def _types(schema: Mapping[str, Any]) -> set[str]:
    """The types that an instance may have."""
    named = schema.get("type")
    if values := _values(schema):
        found = {_type_of(value) for value in values}
    else:
        names = [name for name in (named if isinstance(named, list) else [named]) if isinstance(name, str)]
        found = set(names) & _TYPES or set(_TYPES)
    return found | {"integer"} if "number" in found else found


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


def _encoded(values: list[Any]) -> set[str]:
    """JSON values in a form that can be compared: 1 and 1.0 are the same."""
    return {json.dumps(_whole(value), sort_keys=True) for value in values}


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def mapping(value: Any) -> Mapping[str, Any]:
    """A keyword's value that should be an object; {} where it is something else, which is for generation to refuse."""
    return value if isinstance(value, Mapping) else {}


def names_in(value: Any) -> list[str]:
    """A keyword's value that should be a list of names, without what is none."""
    return [name for name in list_in(value) if isinstance(name, str)]


def list_in(value: Any) -> list[Any]:
    """A keyword's value that should be a list; [] where it is something else."""
    return value if isinstance(value, list) else []


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0
