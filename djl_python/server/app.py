"""The HTTP application: an exchange for each request, and the server's own pages.

Runs in the front end's event loop.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tornado import httputil

from ..config import ServerConfig, registered_spec
from ..core.access.scopes import Scope
from ..dialects.shared.base import Answer, Kind, Route
from ..dialects.shared.openapi import TEXT, openapi
from ..formats.json_framing import JSON
from .batches.calls import Calls
from .batches.pages import Batches
from .composition import Parts
from .connections.limits import Connections
from .console.pages import CONSOLE_ROUTES, Console
from .dispatch.dispatch import Dispatch
from .dispatch.lazy_models import LazyModels
from .http.access import Access, Door, Rights, doors, keyless_scopes
from .http.answers import pretty_json
from .http.base_headers import BaseHeaders
from .http.deferred import DeferredAnswers
from .http.draining import Draining
from .http.exchange import Exchange
from .http.file_answers import AnyAnswer
from .http.listening import connections_at_most
from .http.requests.bodies import Bodies
from .http.requests.request_head import RequestHead
from .http.server import HttpServer
from .http.services import Services
from .keys.callers import Caller, Callers
from .keys.keyring import Keyring
from .management.pages import ROUTES, Management
from .metrics.metrics import CONTENT_TYPE
from .models.health import Health
from .models.registry import ModelRegistry
from .pulling.pulls import Pulls, fetch_for_pull
from .responses.pages import ResponsePages
from .responses.responses import Responses
from .routes import Match, RouteTable
from .tls.certificates import certificates
from .view import View

_STATES: Final = {JSON: dict[str, Any]}

#: The front end's own pages. A dialect that claims one of these paths gets it.
OWN_PAGES: Final = (
    Route(
        *("GET", "/ping", "ping", Kind.PAGE),
        summary="The state of each model, in DJL Serving's form.",
        responses={200: _STATES, 207: _STATES, 500: _STATES, 503: _STATES},
        scope=Scope.PROBE,
    ),
    Route(
        *("GET", "/metrics", "metrics", Kind.PAGE),
        summary="The server's metrics, for Prometheus.",
        responses={200: {TEXT: str}},
        scope=Scope.METRICS,
    ),
    Route(
        *("GET", "/openapi.json", "openapi", Kind.PAGE),
        summary="This document.",
        responses={200: _STATES},
        scope=Scope.PUBLIC,
    ),
)

#: With `console=false`, without those of the console.
OWN_ROUTES: Final = (*OWN_PAGES, *ROUTES, *CONSOLE_ROUTES)


class FrontEnd:
    """Answers every request at the server's addresses.

    Raises:
        ConfigError: an address is https, and there is no certificate for it that can be read.

    Attributes:
        console: the pages for browsers.
        batches: files, and requests in them; to be started and closed.
        bodies: counts the bytes of request bodies in memory.
        deferred: the answers that are held for their clients.
        responses: those of OpenAI's API that are kept; to be closed.
        draining: the unfinished answers, and whether the server is about to end.
        view: the server as dialects' pages see it.
    """

    def __init__(self, parts: Parts) -> None:
        config, registry, metrics, spans = parts.config, parts.registry, parts.metrics, parts.spans
        self.config = config
        self.models = registry.models
        self.routes = RouteTable(parts.dialects, OWN_ROUTES if config.console else (*OWN_PAGES, *ROUTES))
        self.console = Console(config, registry)
        self.bodies = Bodies(config.max_bodies_size)
        self.deferred = DeferredAnswers(config)
        self.draining = Draining()
        self._pulls = Pulls(registry, fetch_for_pull)
        self.view = View(registry, self._pulls, lambda: self.draining.begun)
        self._connections = Connections(
            config.max_connections or connections_at_most(), config.max_connections_per_address
        )
        self._certificates = certificates(config)
        self._own_pages: dict[str, Callable[[], Answer]] = {
            "ping": self.ping,
            "metrics": lambda: Answer(200, metrics.render(), {"content-type": CONTENT_TYPE}),
            "openapi": self.document,
        }
        self._management = Management(config, registry, metrics)
        self._keyring = Keyring.of(config, metrics.keep_keys)
        lazy = _lazy_models(config, registry)
        dispatch = Dispatch(parts.dialects, registry.models, lazy, lambda: not self.draining.begun, registry.residence)
        calls = Calls(self.routes, dispatch, metrics, spans)
        self.batches = Batches(config, self.routes, calls, metrics, spans)
        self.responses = Responses(config, dispatch)
        self._response_pages = ResponsePages(self.responses)
        self._services = Services(
            config=config,
            routes=self.routes,
            dispatch=dispatch,
            models=registry.models,
            view=self.view,
            metrics=metrics,
            bodies=self.bodies,
            deferred=self.deferred,
            responses=self.responses,
            base_headers=BaseHeaders(config),
            draining=self.draining,
            own_page=self.own_page,
            sent_elsewhere=self.console.sent_elsewhere,
            receiver=lambda match, head, key: self.batches.receiver(head, key),
            callers=Callers(config, metrics, have_keys=self._keyring.required),
            spans=spans,
        )

    def begin_draining(self) -> None:
        """The server is about to end: it takes no more calls, and nobody waits for its downloads any more."""
        self.draining.begin()
        self._pulls.close()

    @property
    def keys_required(self) -> bool:
        """Whether requests need an API key."""
        return self._keyring.required

    def http_server(self, door: Door) -> HttpServer:
        """An HTTP server, without sockets yet, that answers the requests that `door` permits."""
        secure = doors(self.config)[door].secure
        return HttpServer(
            _Entrance(self._services, Access(door, self.config, self._keyring)),
            self._connections,
            self._certificates if secure else None,
        )

    def own_page(
        self, match: Match, head: RequestHead, body: bytes, rights: Rights, caller: Caller
    ) -> AnyAnswer | Awaitable[AnyAnswer]:
        """The page of one of `OWN_ROUTES`, or of a route of kind KEPT."""
        if match.operation in self._response_pages.pages:
            return self._response_pages.answer(match.operation, match.values, head.query, rights.key)
        if match.route.kind is Kind.KEPT:
            return self.batches.answer(match.operation, match.values, head, body, caller)
        if match.operation in self._own_pages:
            return self._own_pages[match.operation]()
        if match.operation in self.console.pages:
            return self.console.pages[match.operation](match.values, head, rights)
        return self._management.of(rights.key).pages[match.operation](match.values, head, body)

    def ping(self) -> Answer:
        """Status as in DJL: 500 once a model has failed, 207 while one loads if allow_multi_status is set, else 200.

        With health_check_override, also 500 while a model lacks workers that it had. Also 500 while only a new
        container helps, and 503 while the server drains. The body names models whose workers do not restart.
        """
        health = {model.config.label: model.health for model in self.models}
        status = 200
        if self.draining.begun:
            status = 503
        elif (
            self.view.lost
            or Health.FAILED in health.values()
            or (self.config.health_check_override and Health.UNHEALTHY in health.values())
        ):
            status = 500
        elif Health.PENDING in health.values() and self.config.allow_multi_status:
            status = 207
        setbacks = {model.config.label: model.setback for model in self.models if model.setback}
        shown = {
            name: {"status": str(state)} | ({"message": setbacks[name]} if name in setbacks else {})
            for name, state in health.items()
        }
        return Answer(status, pretty_json(shown))

    def document(self) -> Answer:
        """/openapi.json: every route of the table."""
        return Answer(200, self._document)

    @functools.cached_property
    def _document(self) -> bytes:
        return openapi(
            [*self.routes.rows, *self.routes.shared], keyless_scopes(self.config) if self._keyring.required else None
        )


class _Entrance(httputil.HTTPServerConnectionDelegate):
    """Answers the requests at one of the addresses."""

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
