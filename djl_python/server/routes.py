"""The route table: (method, path) -> which request of which dialect, for which model; or one of the server's pages.

Runs in the front end. Built from what the dialects declare; independent of the HTTP server. A path with a slash at its
end is the path without it: DJL reads them so, and clients join addresses carelessly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from ..core.errors import ConfigError, MethodError, RouteError
from ..dialects.shared.base import Dialect, Kind, Route

ANY_METHOD: Final = "*"


@dataclass(frozen=True)
class Match:
    """The route of a request. `dialect` is None for the front end's own pages; `values` are the variable segments."""

    route: Route
    dialect: Dialect | None
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def operation(self) -> str:
        """The dialect's operation, or the name of the page."""
        return self.route.operation

    @property
    def is_page(self) -> bool:
        """Whether the front end answers it without asking a worker."""
        return self.route.kind in (Kind.PAGE, Kind.KEPT)

    @property
    def is_upload(self) -> bool:
        """Whether its body is a form with a file, which goes to a receiver as it arrives."""
        return self.route.form

    @property
    def is_query(self) -> bool:
        """Whether a worker answers it without generating."""
        return self.route.kind is Kind.QUERY

    @property
    def model(self) -> str:
        """The model that the path names, or ""."""
        return self.values.get("model", "")

    @property
    def version(self) -> str:
        """The version that the path names, or ""."""
        return self.values.get("version", "")


@dataclass
class _Node:
    """One path segment's node in the tree: fixed segments are tried first, then the variable one."""

    fixed: dict[str, _Node] = field(default_factory=dict)
    variable: _Node | None = None
    #: By method: the row, and the names of its variable segments in order.
    rows: dict[str, tuple[Route, Dialect | None, tuple[str, ...]]] = field(default_factory=dict)

    def dialects(self) -> Iterator[Dialect | None]:
        """The dialects of the rows at and below this node."""
        yield from (dialect for _, dialect, _ in self.rows.values())
        for node in (*self.fixed.values(), *([] if self.variable is None else [self.variable])):
            yield from node.dialects()


class RouteTable:
    """The routes of a set of dialects, and those of the server's own pages that no dialect claims.

    Attributes:
        rows: every route that can be matched, with its dialect (None: the server's own).
        shared: the routes of other dialects that a dialect answers too, with that dialect.

    Raises:
        ConfigError: two dialects claim one method and path.
    """

    def __init__(self, dialects: Mapping[str, Dialect], own: Sequence[Route] = ()) -> None:
        self._root = _Node()
        self.rows: list[tuple[Route, Dialect | None]] = []
        self.shared = [(route, dialect) for dialect in dialects.values() for route in dialect.shared]
        for dialect in dialects.values():
            for route in dialect.routes:
                if (taken := self._add(route, dialect)) is not None:
                    raise ConfigError(f"{route.method} {route.path} of {dialect.name} is taken already: {taken}")
        for route in own:
            self._add(route, None)

    def _add(self, route: Route, dialect: Dialect | None) -> str | None:
        """Add a row. If its method and path are taken, change nothing and return a description of the other row."""
        node, names = self._root, []
        for segment in _segments(route.path):
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.variable = node = node.variable or _Node()
            else:
                node = node.fixed.setdefault(segment, _Node())
        if route.method in node.rows:
            other, owner, _ = node.rows[route.method]
            return f"{other.path} of {owner.name if owner is not None else 'the server'}"
        node.rows[route.method] = (route, dialect, tuple(names))
        self.rows.append((route, dialect))
        return None

    def match(self, method: str, path: str) -> Match:
        """The route of `method path`. HEAD is answered by the GET route. As in OpenAPI, a route with fixed segments has
        its path for itself: /models/{model}/invoke is no version's.

        Raises:
            RouteError: no route has this path.
            MethodError: the path has routes, but none for this method; see `methods`.
        """
        node, values = next(self._nodes(path), (None, ()))
        if node is None:
            raise RouteError(f"there is nothing at {path}")
        chosen = node.rows.get(method) or node.rows.get(ANY_METHOD)
        if chosen is None and method == "HEAD":
            chosen = node.rows.get("GET")
        if chosen is None:
            raise MethodError(f"{path} does not take {method}; it takes {', '.join(self.methods(path))}")
        route, dialect, names = chosen
        return Match(route, dialect, dict(zip(names, values, strict=True)))

    def dialect_at(self, path: str) -> Dialect | None:
        """The dialect that answers the 404 or 405 of this path; None: no dialect in particular.

        It is a dialect with routes at the path, else the one with most routes below the longest known prefix of it.
        """
        rows = (row for node, _ in self._nodes(path) for row in node.rows.values())
        owner = next((dialect for _, dialect, _ in rows if dialect is not None), None)
        return owner if owner is not None else self._neighbour(path)

    def _neighbour(self, path: str) -> Dialect | None:
        """The dialect with more than half of the routes at or below the longest known prefix of this path.

        None if that is the root, or if no dialect has so many.
        """
        node = self._root
        for segment in _segments(path):
            below = node.fixed.get(segment) or (node.variable if segment else None)
            if below is None:
                break
            node = below
        routes = Counter(node.dialects()) if node is not self._root else Counter()
        return next((dialect for dialect, count in routes.items() if 2 * count > routes.total()), None)

    def methods(self, path: str) -> list[str]:
        """The methods of a path, for Allow; empty if there is no such path."""
        node, _ = next(self._nodes(path), (_Node(), ()))
        methods = set(node.rows)
        if ANY_METHOD in methods:
            methods = methods - {ANY_METHOD} | {"GET", "POST", "PUT"}
        if "GET" in methods:
            methods.add("HEAD")
        return sorted(methods | {"OPTIONS"}) if methods else []

    def _nodes(self, path: str) -> Iterator[tuple[_Node, tuple[str, ...]]]:
        """The nodes of routes with this path, with the values of its variable segments; fixed segments come first."""
        segments = [unquote(segment) for segment in _segments(path)]

        def walk(node: _Node, position: int, values: tuple[str, ...]) -> Iterator[tuple[_Node, tuple[str, ...]]]:
            if position == len(segments):
                if node.rows:
                    yield node, values
                return
            segment = segments[position]
            if segment in node.fixed:
                yield from walk(node.fixed[segment], position + 1, values)
            if segment and node.variable is not None:
                yield from walk(node.variable, position + 1, (*values, segment))

        return walk(self._root, 0, ())


def _segments(path: str) -> list[str]:
    return path.removeprefix("/").removesuffix("/").split("/")
