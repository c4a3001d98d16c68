"""The HTTP application: calls go to their model's pool, and a few pages tell how the server is.

Runs in the front end's event loop. `FrontEnd` is what Tornado's HTTPServer is given.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from tornado import httputil, routing

from ..config import ServerConfig
from ..dialects.base import Dialect
from .answers import Answer, pretty_json
from .exchange import Exchange
from .metrics import CONTENT_TYPE, Metrics
from .models import Models
from .routes import RouteTable
from .supervisor import Health


class FrontEnd(routing.Router):
    """Everything that answers on the port.

    Attributes:
        pages: path -> what answers GET there.
        draining: calls are refused with 503, and connections close after their answer.
    """

    def __init__(self, config: ServerConfig, models: Models, metrics: Metrics, dialects: Mapping[str, Dialect]) -> None:
        self.config = config
        self.models = models
        self.metrics = metrics
        self.routes = RouteTable(dialects)
        self.pages: dict[str, Callable[[], Answer]] = {
            "/ping": self.ping,
            "/health": self.health,
            "/metrics": lambda: Answer(200, metrics.render(), {"content-type": CONTENT_TYPE}),
        }
        self.draining = False
        self._unsent: set[asyncio.Future[None]] = set()
        cors = {
            "Access-Control-Allow-Origin": config.cors_allowed_origin,
            "Access-Control-Allow-Methods": config.cors_allowed_methods,
            "Access-Control-Allow-Headers": config.cors_allowed_headers,
        }
        self._cors = {name: value for name, value in cors.items() if value} if config.cors_allowed_origin else {}

    def find_handler(self, request: httputil.HTTPServerRequest, **_kwargs: Any) -> httputil.HTTPMessageDelegate | None:
        """Whoever answers this request."""
        return Exchange(self, request)

    def base_headers(self) -> httputil.HTTPHeaders:
        """What every answer carries."""
        return httputil.HTTPHeaders({"Date": httputil.format_timestamp(time.time()), **self._cors})

    def methods(self, path: str) -> list[str]:
        """The methods that a path takes; empty if there is no such path."""
        return ["GET", "HEAD", "OPTIONS"] if path in self.pages else self.routes.methods(path)

    def sending(self, sent: asyncio.Future[None]) -> None:
        """An answer is complete and not yet with the kernel; `sent` tells when it is."""
        self._unsent.add(sent)
        sent.add_done_callback(self._unsent.discard)

    async def wait_sent(self, timeout_s: float | None = None) -> None:
        """Wait until every complete answer is with the kernel."""
        if self._unsent:
            await asyncio.wait(self._unsent, timeout=timeout_s)

    def ping(self) -> Answer:
        """As DJL: 200 while models load or restart, 500 once one has failed; 207 for loading if allow_multi_status."""
        health = {_label(model.config.name, model.config.version): model.health for model in self.models}
        status = 200
        if Health.FAILED in health.values():
            status = 500
        elif Health.PENDING in health.values() and self.config.allow_multi_status:
            status = 207
        return Answer(status, pretty_json({name: {"status": str(state)} for name, state in health.items()}))

    def health(self) -> Answer:
        """Strict readiness: 200 when every model has a worker that answers now, 503 otherwise."""
        waiting = [_label(model.config.name, model.config.version) for model in self.models if not model.ready]
        if self.draining:
            return Answer(503, pretty_json({"status": "shutting down"}))
        if waiting:
            return Answer(503, pretty_json({"status": "not ready", "models": waiting}))
        return Answer(200, pretty_json({"status": "ready"}))


def _label(name: str, version: str) -> str:
    return f"{name}:{version}" if version else name
