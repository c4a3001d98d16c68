"""/openapi.json: an OpenAPI 3.1 document of a route table, made from the types that the routes name.

Runs in the front end. Not a dialect: it knows `Route` and msgspec, and none of the APIs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from ... import __version__
from ...core.access.scopes import Scope
from ...formats.forms import MULTIPART
from ...formats.http_rules import phrase_of
from ...formats.json_framing import JSON, JSONLINES, SSE, encode_json
from .base import Bodies, Dialect, Kind, Route
from .typed_body import OTHER_TAG

TEXT: Final = "text/plain"

Row = tuple[Route, Dialect | None]

_VARIABLE: Final = re.compile(r"\{(\w+)\}")
#: Methods under which a `*` route is documented; HEAD and OPTIONS are left out.
_EVERY_METHOD: Final = ("GET", "POST", "PUT")
_INFO: Final = {
    "title": "djl-serving",
    "version": __version__,
    "description": "Language models, and any Python model, over HTTP in several dialects.",
}
#: The ways to send an API key: OpenAI's, Anthropic's and Azure's.
_SECURITY_SCHEMES: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "Authorization: Bearer KEY"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "api-key": {"type": "apiKey", "in": "header", "name": "api-key"},
}
_SERVER: Final = "server"
_OWN_SUMMARY: Final = "The server itself: health, metrics, models at run time, and the console."
_WHAT: Final = {"model": "A model's name.", "version": "A model's version."}


def openapi(rows: Iterable[Row], keyless: Collection[Scope] | None = None) -> bytes:
    """The document, as JSON. Routes without a dialect are the server's own pages.

    `keyless` are the scopes of routes that need no API key; None: no route needs one.

    Rows with the same method and path become one operation with the union of their bodies.
    """
    document = _Document(_merged(rows), set(Scope) if keyless is None else keyless)
    components: dict[str, Any] = {"schemas": document.components}
    security: dict[str, Any] = {}
    if keyless is not None:
        components["securitySchemes"] = _SECURITY_SCHEMES
        security = {"security": [{name: []} for name in _SECURITY_SCHEMES]}
    return encode_json(
        {
            "openapi": "3.1.0",
            "info": _INFO,
            "servers": [{"url": "/"}],
            "tags": document.tags(),
            "paths": document.paths(),
            "components": components,
            **security,
        }
    )


class _Document:
    """The rows, and the schema of every type they name.

    msgspec gets all types in one call: only then do types of the same name in different modules get different names.
    """

    def __init__(self, rows: Sequence[Row], keyless: Collection[Scope]) -> None:
        self._rows = rows
        self._keyless = keyless
        types = [shape for row in rows for shape in _types(*row)]
        schemas, self.components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
        _show_other_tags([schemas, self.components], self.components)
        self._schemas = {
            id(shape): schema for shape, schema in zip(types, schemas, strict=True)
        }  # not all are hashable

    def tags(self) -> list[dict[str, str]]:
        """The groups of operations: the dialects, and the server itself."""
        summaries = {dialect.name: dialect.summary for _, dialect in self._rows if dialect is not None}
        return [{"name": name, "description": text} for name, text in (summaries | {_SERVER: _OWN_SUMMARY}).items()]

    def paths(self) -> dict[str, dict[str, Any]]:
        """Operations by path and method."""
        paths: dict[str, dict[str, Any]] = {}
        for route, dialect in self._rows:
            for method in _EVERY_METHOD if route.method == "*" else (route.method,):
                paths.setdefault(route.path, {}).setdefault(method.lower(), self._operation(route, method, dialect))
        return paths

    def _operation(self, route: Route, method: str, dialect: Dialect | None) -> dict[str, Any]:
        operation: dict[str, Any] = {
            "operationId": "_".join([method.lower(), *re.findall(r"\w+", route.path)]),
            "tags": [dialect.name if dialect is not None else _SERVER],
            "responses": {
                str(status): {"description": phrase_of(status), **self._content(bodies)}
                for status, bodies in sorted(_responses(route, dialect).items())
            },
        }
        if route.summary:
            operation["summary"] = route.summary
        if route.scope in self._keyless and len(self._keyless) < len(Scope):
            operation["security"] = []  # without a key
        parameters = [_path_parameter(name) for name in _VARIABLE.findall(route.path)]
        if route.query is not None:
            parameters += self._query_parameters(route)
        parameters += [
            {"name": name, "in": "header", "description": what, "schema": {"type": "string"}}
            for name, what in route.headers.items()
        ]
        if parameters:
            operation["parameters"] = parameters
        if route.request is not None:
            needed = route.kind is not Kind.PAGE  # a page's body is optional: its path is enough
            content_type = MULTIPART if route.form else JSON
            content = self._content({content_type: route.request})
            if route.example is not None:
                content["content"][content_type]["example"] = route.example
            operation["requestBody"] = {"required": needed, **content}
        return operation

    def _query_parameters(self, route: Route) -> Iterator[dict[str, Any]]:
        """A parameter for each of the type's fields."""
        component = self.components[self._schemas[id(route.query)]["$ref"].rpartition("/")[2]]
        needed = () if route.query is route.request else component.get("required", ())
        for name, schema in component["properties"].items():
            yield {"name": name, "in": "query", "required": name in needed, "schema": schema}

    def _content(self, bodies: Bodies) -> dict[str, Any]:
        if not bodies:
            return {}
        return {"content": {content_type: self._media(content_type, shape) for content_type, shape in bodies.items()}}

    def _media(self, content_type: str, shape: Any) -> dict[str, Any]:
        """The media type object of a body. For a stream of events, OpenAPI's `schema` is that of each event."""
        schema = _any_of(
            [self._schemas[id(alternative)] for alternative in _alternatives(shape) if not isinstance(alternative, str)]
        )
        if content_type == JSONLINES:
            return {"schema": {"type": "string"}, "x-itemSchema": schema}  # OpenAPI 3.2 has `itemSchema`
        if not content_type.startswith(SSE):
            return {"schema": schema}
        data = [{"const": alternative} for alternative in _alternatives(shape) if isinstance(alternative, str)]
        data.append({"type": "string", "contentMediaType": JSON, "contentSchema": schema})
        return {"schema": {"type": "object", "required": ["data"], "properties": {"data": _any_of(data)}}}


def _show_other_tags(schemas: list[Any], components: Mapping[str, Any]) -> None:
    """Describe structs that stand for all other tags: a discriminator can't."""
    pending: list[Any] = list(schemas)
    while pending:
        at = pending.pop()
        if isinstance(at, list):
            pending += at
        if not isinstance(at, dict):
            continue
        pending += at.values()
        discriminator = at.get("discriminator")
        if not isinstance(discriminator, dict) or OTHER_TAG not in discriminator["mapping"]:
            continue
        del at["discriminator"]
        name, tags = discriminator["propertyName"], dict(discriminator["mapping"])
        other = components[tags.pop(OTHER_TAG).rpartition("/")[2]]
        other["properties"][name] = {"type": "string", "minLength": 1, "not": {"enum": list(tags)}}


def _merged(rows: Iterable[Row]) -> list[Row]:
    """One row for each method and path; its summary and dialect are the first row's."""
    merged: dict[tuple[str, str], Row] = {}
    for route, dialect in rows:
        key = (route.method, route.path)
        if key not in merged:
            merged[key] = (route, dialect)
            continue
        first, owner = merged[key]
        responses = {status: dict(bodies) for status, bodies in _responses(first, owner).items()}
        for status, bodies in _responses(route, dialect).items():
            known = responses.setdefault(status, {})
            known |= {content_type: _either(known.get(content_type), shape) for content_type, shape in bodies.items()}
        merged[key] = (replace(first, request=_either(first.request, route.request), responses=responses), owner)
    return list(merged.values())


def _either(one: Any, other: Any) -> Any:
    """The alternatives of two shapes together; either may be None."""
    if one is None or other is None:
        return other if one is None else one
    further = tuple(shape for shape in _alternatives(other) if shape not in _alternatives(one))
    return (*_alternatives(one), *further) if further else one


def _alternatives(shape: Any) -> tuple[Any, ...]:
    return shape if isinstance(shape, tuple) else (shape,)


def _any_of(schemas: list[Any]) -> Any:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _types(route: Route, dialect: Dialect | None) -> Iterator[Any]:
    """Every type that a row names."""
    named = [shape for bodies in _responses(route, dialect).values() for shape in bodies.values()]
    for shape in (shape for shape in (route.request, route.query, *named) if shape is not None):
        yield from (alternative for alternative in _alternatives(shape) if not isinstance(alternative, str))


def _responses(route: Route, dialect: Dialect | None) -> Mapping[int, Bodies]:
    """Responses by status; for the same content type the route's own type overrides the dialect's."""
    responses: dict[int, Bodies] = {} if route.responses else {200: {}}
    for status, bodies in (*(dialect.errors.items() if dialect is not None else ()), *route.responses.items()):
        responses[status] = {**responses.get(status, {}), **bodies}
    return responses


def _path_parameter(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": _WHAT.get(name, name),
        "schema": {"type": "string", "minLength": 1},
    }
