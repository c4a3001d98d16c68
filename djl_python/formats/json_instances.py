"""What the instances of a JSON schema are, as far as generation has to know. Runs in the worker.

The answers are on the safe side: a schema is only said to have no finite instance where its keywords prove it. They
take time in proportion to the schema: each of its objects is looked at once, however many references lead to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

#: Characters that stand for themselves in the fragment of a URL.
_PLAIN: Final = "/~!$&'()*+,;=:@?"


class _Need(msgspec.Struct):
    """A condition: one of several schemas has a finite instance, or another has none.

    Attributes:
        schema: the other one.
        met: whether one of them has.
    """

    schema: Mapping[str, Any]
    met: bool = False


class Instances:
    """What can be said of a schema and its subschemas, which must not be changed meanwhile.

    Args:
        root: the whole schema, in which references are looked up.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._targets: dict[str, Any] = {}  # what references lead to
        self._ends: dict[int, Any] = {}  # what chains of references end at, by the identity of the first schema
        parts = list(_parts(root))
        self._resolves = not any("$id" in one for one in parts if one is not root)  # else from elsewhere
        self._finite = self._ending(parts)  # identities of the schemas with a finite instance

    def has_finite(self, schema: Any) -> bool:
        """Whether a JSON text that ends may be an instance. Of `{"$ref": "#"}`, and of a node that requires another
        node, none is: a model that began one could never end it."""
        return id(schema) in self._finite if isinstance(schema, Mapping) else schema is not False

    def followed(self, schema: Any) -> Any:
        """The schema that a chain of bare references ends at; for a cycle of references, one schema of the cycle."""
        passed: list[int] = []
        seen = set[int]()
        while isinstance(schema, Mapping) and isinstance(reference := schema.get("$ref"), str):
            if id(schema) in self._ends:
                schema = self._ends[id(schema)]
                break
            if id(schema) in seen:
                break
            seen.add(id(schema))
            passed.append(id(schema))
            schema = self.at(reference)
        self._ends.update(dict.fromkeys(passed, schema))
        return schema

    def at(self, reference: str) -> Any:
        """The schema at a JSON pointer, `#/...`; None: the reference is of another kind, or dangling."""
        if reference not in self._targets:
            self._targets[reference] = self._looked_up(reference)
        return self._targets[reference]

    def canonical(self, reference: str) -> str:
        """A reference to a schema in here, in the one spelling of those that mean the same."""
        if "%" not in reference or self.at(reference) is None:
            return reference
        return quote(unquote(reference), safe=f"#{_PLAIN}")

    def _ending(self, parts: list[Mapping[str, Any]]) -> set[int]:
        """The identities of the schemas with a finite instance: those that require no other schema, then repeatedly
        those whose requirements are met, so that a cycle can't prove itself finite.
        """
        unmet: dict[int, int] = {}
        needed: dict[int, list[_Need]] = {}
        ready = []
        for schema in {id(part): part for part in parts}.values():
            open_needs = [members for members in self._needs(schema) if not any(map(_always_ends, members))]
            unmet[id(schema)] = len(open_needs)
            for members in open_needs:
                need = _Need(schema)
                for member in members:
                    needed.setdefault(id(member), []).append(need)
            if not open_needs:
                ready.append(schema)
        finite = set[int]()
        while ready:
            schema = ready.pop()
            finite.add(id(schema))
            for need in needed.get(id(schema), ()):
                if not need.met:
                    need.met = True
                    unmet[id(need.schema)] -= 1
                    if not unmet[id(need.schema)]:
                        ready.append(need.schema)
        return finite

    def _needs(self, schema: Mapping[str, Any]) -> Iterator[list[Any]]:
        """Schemas, of each list of which one must have a finite instance, for this one to have any."""
        reference = schema.get("$ref")
        if isinstance(reference, str) and (target := self.at(reference)) is not None:
            yield [target]
        for part in list_in(schema.get("allOf")):
            yield [part]
        for keyword in ("anyOf", "oneOf"):
            if parts := list_in(schema.get(keyword)):
                yield parts
        if schema.get("type") == "object":
            listed = mapping(schema.get("properties"))
            for name in names_in(schema.get("required")):
                yield [listed.get(name)]
        elif schema.get("type") == "array" and not schema.get("prefixItems") and count_in(schema.get("minItems")):
            yield [schema.get("items")]

    def _looked_up(self, reference: str) -> Any:
        if not self._resolves or not reference.startswith("#") or (len(reference) > 1 and reference[1] != "/"):
            return None
        node: Any = self._root
        for part in unquote(reference).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping) and name in node:
                node = node[name]
            elif isinstance(node, list) and re.fullmatch("[0-9]{1,6}", name) and int(name) < len(node):
                node = node[int(name)]
            else:
                return None
        return node


def _always_ends(schema: Any) -> bool:
    """Whether it is no object with keywords, and not the schema of nothing."""
    return not isinstance(schema, Mapping) and schema is not False


def _parts(value: Any) -> Iterator[Mapping[str, Any]]:
    """All objects in a value."""
    level = [value]
    while level:
        inner = level.pop()
        if isinstance(inner, Mapping):
            yield inner
            level += inner.values()
        elif isinstance(inner, list):
            level += inner


def mapping(value: Any) -> Mapping[str, Any]:
    """A keyword's value that should be an object; {} where it is something else, which is for generation to refuse."""
    return value if isinstance(value, Mapping) else {}


def names_in(value: Any) -> list[str]:
    """A keyword's value that should be a list of names, without what is none."""
    return [name for name in list_in(value) if isinstance(name, str)]


def list_in(value: Any) -> list[Any]:
    """A keyword's value that should be a list; [] where it is something else."""
    return value if isinstance(value, list) else []


def count_in(value: Any) -> int:
    """A keyword's value that should be a number of items; 0 where it is something else."""
    return value if isinstance(value, int) else 0
