"""The HTTP application: an exchange for each request, and the server's own pages.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from tornado import httputil

from ..config import ServerConfig
from ..dialects.shared.base import Answer, Dialect, Kind, Route, ServerView
from ..dialects.shared.openapi import TEXT, openapi
from ..formats.json_framing import JSON
from .http.answers import pretty_json
from .http.bodies import Bodies
from .http.connections import HttpServer
from .http.exchange import Exchange
from .metrics import CONTENT_TYPE, Metrics
from .models.registry import Models
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
        view: the server as dialects' pages see it.
        request_id_header: the name of the header that carries a request's id, in lower case.
        draining: whether calls are refused with 503, and connections close after their answer.
    """

    def __init__(self, config: ServerConfig, models: Models, metrics: Metrics, dialects: Mapping[str, Dialect]) -> None:
        self.config = config
        self.models = models
        self.metrics = metrics
        self.dialects = dialects
        self.routes = RouteTable(dialects, OWN_PAGES)
        self.bodies = Bodies(config.max_bodies_size)
        self.request_id_header = config.request_id_header_key.lower()
        self.draining = False
        self.view: ServerView = View(models, lambda: self.draining, config.drain_timeout_s)
        self._own_pages: dict[str, Callable[[], Answer]] = {
            "ping": self.ping,
            "metrics": lambda: Answer(200, metrics.render(), {"content-type": CONTENT_TYPE}),
            "openapi": self.document,
        }
        self._unsent: set[asyncio.Future[None]] = set()
        self._doing: set[asyncio.Future[None]] = set()
        cors = {
            "Access-Control-Allow-Origin": config.cors_allowed_origin,
            "Access-Control-Allow-Methods": config.cors_allowed_methods,
            "Access-Control-Allow-Headers": config.cors_allowed_headers,
        }
        self._cors = {name: value for name, value in cors.items() if value} if config.cors_allowed_origin else {}

    def http_server(self) -> HttpServer:
        """An HTTP server, without sockets yet, whose requests are answered here."""
        return HttpServer(self)

    def start_request(self, server_conn: object, request_conn: httputil.HTTPConnection) -> httputil.HTTPMessageDelegate:
        """The exchange that answers the next request of a connection."""
        return Exchange(self, request_conn)

    def base_headers(self) -> httputil.HTTPHeaders:
        """The headers that every answer carries."""
        return httputil.HTTPHeaders({"Date": _date(int(time.time())), **self._cors})

    def own_page(self, operation: str) -> Answer:
        """One of `OWN_PAGES`."""
        return self._own_pages[operation]()

    def keep(self, task: asyncio.Future[None]) -> None:
        """Keep a reference to the task of an unfinished page: the event loop alone would not."""
        self._doing.add(task)
        task.add_done_callback(self._doing.discard)

    @property
    def doing(self) -> int:
        """How many pages are still being made."""
        return len(self._doing)

    async def wait_done(self) -> None:
        """Wait until every page that is being made has been answered."""
        if self._doing:
            await asyncio.wait(self._doing)

    def sending(self, sent: asyncio.Future[None]) -> None:
        """Track a complete answer that the kernel has not taken yet; `sent` is done when it has."""
        self._unsent.add(sent)
        sent.add_done_callback(self._unsent.discard)

    async def wait_sent(self, timeout_s: float | None = None) -> None:
        """Wait until the kernel has taken every complete answer, at most `timeout_s` seconds."""
        if self._unsent:
            await asyncio.wait(self._unsent, timeout=timeout_s)

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


@functools.lru_cache(maxsize=1)
def _date(second: int) -> str:
    """A Unix time as HTTP's Date header has it."""
    return httputil.format_timestamp(second)
