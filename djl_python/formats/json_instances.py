"""What the instances of a JSON schema are, as far as generation has to know. Runs in the worker.

Both answers are on the safe side: a schema is only said to have no finite instance, and two schemas are only said to
share none, where their keywords prove it.
"""

from __future__ import annotations

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
        grown = True
        while grown:  # the least fixed point: nothing is finite because it would be finite
            found = {one for one in references - self._ending if self.has_finite(self._at(one))}
            self._ending |= found
            grown = bool(found)

    def has_finite(self, schema: Any) -> bool:
        """Whether a JSON text that ends may be an instance. Of `{"$ref": "#"}`, and of a node that requires another
        node, none is: a model that began one could never end it."""
        if not isinstance(schema, Mapping):
            return schema is not False
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in self._ending and self._at(reference) is not None:
            return False
        if not all(map(self.has_finite, _list(schema.get("allOf")))):
            return False
        for keyword in ("anyOf", "oneOf"):
            if (parts := _list(schema.get(keyword))) and not any(map(self.has_finite, parts)):
                return False
        if schema.get("type") == "object":
            listed = schema.get("properties")
            listed = listed if isinstance(listed, Mapping) else {}
            required = [name for name in _list(schema.get("required")) if isinstance(name, str)]
            return all(self.has_finite(listed.get(name)) for name in required)
        if schema.get("type") == "array" and not schema.get("prefixItems") and _count(schema.get("minItems")):
            return self.has_finite(schema.get("items"))
        return True

    def apart(self, narrow: Any, wide: Any) -> bool:
        """Whether no instance of `narrow`, with its listed properties only, is one of `wide` as it is."""
        narrow, wide = self._followed(narrow), self._followed(wide)
        if not (isinstance(narrow, Mapping) and isinstance(wide, Mapping)):
            return False
        if not _types(narrow) & _types(wide):
            return True
        if _types(narrow) != {"object"} or "patternProperties" in narrow or narrow.get("additionalProperties"):
            return False
        listed, others = narrow.get("properties"), wide.get("properties")
        if not isinstance(listed, Mapping):
            return False
        for name in _list(wide.get("required")):
            if name not in listed:
                return True
            values = _values(listed[name]), _values(others.get(name) if isinstance(others, Mapping) else None)
            if name in _list(narrow.get("required")) and None not in values:
                return not any(one == other for one in values[0] or () for other in values[1] or ())
        return False

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
        if not reference.startswith("#") or (len(reference) > 1 and reference[1] != "/"):
            return None
        found: Any = self._root
        for part in unquote(reference).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdigit() and int(name) < len(found):
                found = found[int(name)]
            else:
                return None
        return found


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if isinstance(reference := value.get("$ref"), str):
            yield reference
        for one in value.values():
            yield from _references(one)
    elif isinstance(value, list):
        for one in value:
            yield from _references(one)


def _types(schema: Mapping[str, Any]) -> set[str]:
    """The types that an instance may have."""
    named = schema.get("type")
    if values := _values(schema):
        found = {_type_of(value) for value in values}
    else:
        found = {name for name in (named if isinstance(named, list) else [named]) if name in _TYPES} or set(_TYPES)
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


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0
