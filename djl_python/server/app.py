"""The HTTP application: an exchange for each request, and the server's own pages.

Runs in the front end's event loop.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from tornado import httputil

from ..config import ServerConfig, registered_spec
from ..dialects.shared.base import Answer, Dialect, Kind, Route, ServerView
from ..dialects.shared.openapi import TEXT, openapi
from ..formats.json_framing import JSON
from .batches.calls import Calls
from .batches.pages import Batches
from .console.pages import CONSOLE_ROUTES, Console
from .http.access import Access, Door, Rights
from .http.answers import pretty_json
from .http.base_headers import BaseHeaders
from .http.bodies import Bodies
from .http.connections import HttpServer
from .http.deferred import DeferredAnswers
from .http.draining import Draining
from .http.exchange import Exchange
from .http.file_answers import FileAnswer
from .http.request_head import RequestHead
from .http.services import Services
from .management.pages import ROUTES, Management
from .metrics import CONTENT_TYPE, Metrics
from .models.lazy_models import LazyModels
from .models.registry import ModelRegistry
from .models.served_model import Health
from .routes import Match, RouteTable
from .spans import NO_SPANS, Spans
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

#: With `console=false`, without those of the console.
OWN_ROUTES: Final = (*OWN_PAGES, *ROUTES, *CONSOLE_ROUTES)


class FrontEnd:
    """Answers every request at the server's addresses.

    Attributes:
        console: the pages for browsers.
        batches: files, and requests in them; to be started and closed.
        bodies: counts the bytes of request bodies in memory.
        deferred: the answers that are held for their clients.
        draining: what is left to be answered; says whether the server is about to end.
        view: the server as dialects' pages see it.
    """

    def __init__(
        self,
        config: ServerConfig,
        registry: ModelRegistry,
        metrics: Metrics,
        dialects: Mapping[str, Dialect],
        spans: Spans = NO_SPANS,
    ) -> None:
        self.config = config
        self.models = registry.models
        self.routes = RouteTable(dialects, OWN_ROUTES if config.console else (*OWN_PAGES, *ROUTES))
        self.console = Console(config, registry)
        self.bodies = Bodies(config.max_bodies_size)
        self.deferred = DeferredAnswers(config)
        self.draining = Draining()
        self.view: ServerView = View(registry, lambda: self.draining.begun)
        self._own_pages: dict[str, Callable[[], Answer]] = {
            "ping": self.ping,
            "metrics": lambda: Answer(200, metrics.render(), {"content-type": CONTENT_TYPE}),
            "openapi": self.document,
        }
        self._management = Management(config, registry, metrics)
        lazy = _lazy_models(config, registry)
        calls = Calls(self.routes, dialects, registry.models, metrics, lazy, spans)
        self.batches = Batches(config, self.routes, calls, metrics, spans)
        self._services = Services(
            config=config,
            routes=self.routes,
            dialects=dialects,
            models=registry.models,
            view=self.view,
            metrics=metrics,
            bodies=self.bodies,
            deferred=self.deferred,
            base_headers=BaseHeaders(config),
            draining=self.draining,
            own_page=self.own_page,
            receiver=lambda match, head: self.batches.receiver(head),
            lazy=lazy,
            spans=spans,
        )

    def http_server(self, door: Door) -> HttpServer:
        """An HTTP server, without sockets yet, whose requests are answered here, as far as `door` permits."""
        return HttpServer(_Entrance(self._services, Access(door, self.config)))

    def own_page(
        self, match: Match, head: RequestHead, body: bytes, rights: Rights
    ) -> Answer | Awaitable[Answer | FileAnswer]:
        """The page of one of `OWN_ROUTES`, or of a route of kind KEPT."""
        if match.route.kind is Kind.KEPT:
            return self.batches.answer(match.operation, match.values, head, body)
        if match.operation in self._own_pages:
            return self._own_pages[match.operation]()
        if match.operation in self.console.pages:
            return self.console.pages[match.operation](match.values, head, rights)
        return self._management.pages[match.operation](match.values, head, body)

    def ping(self) -> Answer:
        """Status as in DJL: 500 once a model has failed, 207 while one loads if allow_multi_status is set, else 200.

        With health_check_override, 500 too while a model lacks the workers that it had.
        """
        health = {model.config.label: model.health for model in self.models}
        status = 200
        if Health.FAILED in health.values() or (
            self.config.health_check_override and Health.UNHEALTHY in health.values()
        ):
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


class _Entrance(httputil.HTTPServerConnectionDelegate):
    """What is behind one of the addresses."""

    def __init__(self, services: Services, access: Access) -> None:
        self._services = services
        self._access = access

    def start_request(self, server_conn: object, request_conn: httputil.HTTPConnection) -> httputil.HTTPMessageDelegate:
        """The exchange that answers the next request of a connection."""
        return Exchange(self._services, self._access, request_conn)


def _lazy_models(config: ServerConfig, registry: ModelRegistry) -> LazyModels | None:
    if config.model_url_pattern is None:
        return None
    return LazyModels(
        registry,
        config.model_url_pattern,
        config.max_lazy_models,
        lambda name, url: registered_spec(url, config.model_store, name=name),
    )
