"""The route table: (method, path) -> which request of which dialect, for which model.

Runs in the front end. Built from what the dialects declare; knows no HTTP server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from ..dialects.base import Dialect
from ..errors import MethodError, RouteError

ANY_METHOD: Final = "*"


@dataclass(frozen=True)
class Match:
    """What a path stands for. `model` and `version` are "" where the path does not say."""

    dialect: Dialect
    operation: str
    model: str = ""
    version: str = ""


@dataclass
class _Node:
    """One path segment's place in the tree: fixed names first, then the variable one."""

    fixed: dict[str, _Node] = field(default_factory=dict)
    variable: dict[str, _Node] = field(default_factory=dict)  # by the variable's name
    operations: dict[str, tuple[Dialect, str]] = field(default_factory=dict)  # by method


class RouteTable:
    """The routes of a set of dialects. Where two dialects claim one method and path, the first keeps it."""

    def __init__(self, dialects: Mapping[str, Dialect]) -> None:
        self._root = _Node()
        for dialect in dialects.values():
            for route in dialect.routes:
                node = self._root
                for segment in _segments(route.path):
                    if segment.startswith("{"):
                        node = node.variable.setdefault(segment[1:-1], _Node())
                    else:
                        node = node.fixed.setdefault(segment, _Node())
                node.operations.setdefault(route.method, (dialect, route.operation))

    def match(self, method: str, path: str) -> Match:
        """What `method path` asks for. HEAD is answered by the GET route.

        Raises:
            RouteError: no route has this path.
            MethodError: the path has routes, but none for this method; see `methods`.
        """
        found = False
        for node, variables in self._nodes(path):
            found = True
            operations = node.operations
            chosen = operations.get(method) or operations.get(ANY_METHOD)
            if chosen is None and method == "HEAD":
                chosen = operations.get("GET")
            if chosen is not None:
                return Match(*chosen, model=variables.get("model", ""), version=variables.get("version", ""))
        if found:
            raise MethodError(f"{path} does not take {method}; it takes {', '.join(self.methods(path))}")
        raise RouteError(f"there is nothing at {path}")

    def methods(self, path: str) -> list[str]:
        """The methods of a path, for Allow; empty if there is no such path."""
        methods = {method for node, _ in self._nodes(path) for method in node.operations}
        if ANY_METHOD in methods:
            methods = methods - {ANY_METHOD} | {"GET", "POST", "PUT"}
        if "GET" in methods:
            methods.add("HEAD")
        return sorted(methods | {"OPTIONS"}) if methods else []

    def _nodes(self, path: str) -> Iterator[tuple[_Node, dict[str, str]]]:
        """The nodes that end a route and have this path, fixed segments before variable ones."""
        segments = [unquote(segment) for segment in _segments(path)]

        def walk(node: _Node, position: int, variables: dict[str, str]) -> Iterator[tuple[_Node, dict[str, str]]]:
            if position == len(segments):
                if node.operations:
                    yield node, variables
                return
            segment = segments[position]
            if segment in node.fixed:
                yield from walk(node.fixed[segment], position + 1, variables)
            if segment:
                for name, child in node.variable.items():
                    yield from walk(child, position + 1, {**variables, name: segment})

        return walk(self._root, 0, {})


def _segments(path: str) -> list[str]:
    return path.removeprefix("/").split("/")
