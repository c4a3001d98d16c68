"""The HTTP application: an exchange for each request, and the server's own pages.

Runs in the front end's event loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

from tornado import httputil

from ..config import ServerConfig
from ..dialects.shared.base import Answer, Dialect, Kind, Route, ServerView
from ..dialects.shared.openapi import TEXT, openapi
from ..formats.json_framing import JSON
from .http.answers import pretty_json
from .http.base_headers import BaseHeaders
from .http.bodies import Bodies
from .http.connections import HttpServer
from .http.draining import Draining
from .http.exchange import Exchange, Services
from .metrics import CONTENT_TYPE, Metrics
from .models.registry import ModelRegistry
from .models.served_model import Health
from .routes import RouteTable
from .view import View

_STATES: Final = {JSON: dict[str, Any]}

#: The front end's own pages. A dialect that claims one of these paths gets it.
OWN_PAGES: Final = (
    Route(
        *("GET", "/ping", "ping", Kind.PAGE),
        summary="How each model is, as DJL Serving says it.",
        responses={200: _STATES, 207: _STATES, 500: _STATES},
    ),
    Route(
        *("GET", "/metrics", "metrics", Kind.PAGE),
        summary="What the server has counted, for Prometheus.",
        responses={200: {TEXT: str}},
    ),
    Route(
        *("GET", "/openapi.json", "openapi", Kind.PAGE),
        summary="This document.",
        responses={200: _STATES},
    ),
)


class FrontEnd(httputil.HTTPServerConnectionDelegate):
    """Answers every request on the port.

    Attributes:
        bodies: counts the bytes of request bodies in memory.
        draining: what is left to be answered; says whether the server is about to end.
        view: the server as dialects' pages see it.
    """

    def __init__(
        self, config: ServerConfig, registry: ModelRegistry, metrics: Metrics, dialects: Mapping[str, Dialect]
    ) -> None:
        self.config = config
        self.models = registry.models
        self.routes = RouteTable(dialects, OWN_PAGES)
        self.bodies = Bodies(config.max_bodies_size)
        self.draining = Draining()
        self.view: ServerView = View(registry, lambda: self.draining.begun)
        self._own_pages: dict[str, Callable[[], Answer]] = {
            "ping": self.ping,
            "metrics": lambda: Answer(200, metrics.render(), {"content-type": CONTENT_TYPE}),
            "openapi": self.document,
        }
        self._services = Services(
            config=config,
            routes=self.routes,
            dialects=dialects,
            models=registry.models,
            view=self.view,
            metrics=metrics,
            bodies=self.bodies,
            base_headers=BaseHeaders(config),
            draining=self.draining,
            own_page=self.own_page,
        )

    def http_server(self) -> HttpServer:
        """An HTTP server, without sockets yet, whose requests are answered here."""
        return HttpServer(self)

    def start_request(self, server_conn: object, request_conn: httputil.HTTPConnection) -> httputil.HTTPMessageDelegate:
        """The exchange that answers the next request of a connection."""
        return Exchange(self._services, request_conn)

    def own_page(self, operation: str) -> Answer:
        """One of `OWN_PAGES`."""
        return self._own_pages[operation]()

    def ping(self) -> Answer:
        """Status as in DJL: 500 once a model has failed, 207 while one loads if allow_multi_status is set, else 200."""
        health = {model.config.label: model.health for model in self.models}
        status = 200
        if Health.FAILED in health.values():
            status = 500
        elif Health.PENDING in health.values() and self.config.allow_multi_status:
            status = 207
        return Answer(status, pretty_json({name: {"status": str(state)} for name, state in health.items()}))

    def document(self) -> Answer:
        """/openapi.json: every route of the table."""
        return Answer(200, self._document)

    @functools.cached_property
    def _document(self) -> bytes:
        return openapi([*self.routes.rows, *self.routes.shared])
