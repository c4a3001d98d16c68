"""Passes requests on to a server as they are, answers as they come, and records the requests. Runs on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, cast

import httpx2
from tornado import web
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from .player import without_defaults
from .recording import Privacy, RecordedRequest, Recorder

#: What concerns a connection, and not the request (RFC 9110, 7.6.1); the client library adds its own.
_HOP_BY_HOP: Final = frozenset(
    """
    connection content-length expect host keep-alive proxy-connection te trailer transfer-encoding upgrade
    """.split()
)
_MAX_BODY_BYTES: Final = 1 << 30
#: Seconds that requests which are under way get to be answered when recording ends.
_DRAIN_S: Final = 30.0


@dataclass(frozen=True)
class Proxy:
    """What the handlers of requests share. `began_s` is on time.monotonic's clock; `passing`: requests under way."""

    url: str
    client: httpx2.AsyncClient
    recorder: Recorder
    privacy: Privacy
    began_s: float
    passing: set[asyncio.Task[None]] = field(default_factory=set)


@asynccontextmanager
async def recording_proxy(url: str, host: str, port: int, recorder: Recorder, privacy: Privacy) -> AsyncIterator[int]:
    """Listen, and pass on to `url`; gives the port.

    Raises:
        OSError: the address can't be listened on.
    """
    timeout = httpx2.Timeout(None, connect=10.0)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx2.AsyncClient(timeout=timeout, limits=limits, follow_redirects=False) as client:
        without_defaults(client)
        proxy = Proxy(url.rstrip("/"), client, recorder, privacy, time.monotonic())
        application = web.Application([("/.*", _Handler, {"proxy": proxy})])
        server = HTTPServer(application, max_body_size=_MAX_BODY_BYTES, max_buffer_size=_MAX_BODY_BYTES)
        sockets = bind_sockets(port, host)
        server.add_sockets(sockets)
        try:
            yield sockets[0].getsockname()[1]
        finally:
            server.stop()
            if proxy.passing:
                await asyncio.wait(proxy.passing, timeout=_DRAIN_S)
            await server.close_all_connections()
            await asyncio.gather(*proxy.passing, return_exceptions=True)


class _Handler(web.RequestHandler):
    """One request."""

    SUPPORTED_METHODS = ("GET", "HEAD", "POST", "DELETE", "PATCH", "PUT", "OPTIONS")

    def initialize(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._passing: asyncio.Task[None] | None = None
        self._began_s = time.monotonic()
        self._answer_bytes = self._answer_status = 0

    async def _pass(self) -> None:
        """Pass the request on, and its answer back."""
        self._passing = asyncio.ensure_future(self._recorded())
        self._proxy.passing.add(self._passing)
        self._passing.add_done_callback(self._proxy.passing.discard)
        try:
            await self._passing
        except httpx2.TransportError as exc:
            if not self._headers_written:
                self.set_status(502)
                await self.finish(f"{self._proxy.url}: {type(exc).__name__}: {exc}\n")
            else:
                self.detach().close()
        except asyncio.CancelledError:
            if not self._passing.cancelled():  # it was not the client who left
                raise

    get = head = post = delete = patch = put = options = _pass

    def on_connection_close(self) -> None:
        """The client has gone: the server is to know."""
        if self._passing is not None:
            self._passing.cancel()

    def compute_etag(self) -> None:
        """None: the server's own, or none."""

    async def _recorded(self) -> None:
        """Pass the request on, and record it, whatever becomes of it."""
        try:
            await self._passed()
        finally:
            self._record()

    async def _passed(self) -> None:
        request = self.request
        headers = [(name, value) for name, value in request.headers.get_all() if name.lower() not in _HOP_BY_HOP]
        url = self._proxy.url + request.uri
        async with self._proxy.client.stream(request.method, url, headers=headers, content=request.body) as answer:
            self._answer_status = answer.status_code
            self._begin(answer)
            async for piece in answer.aiter_raw():
                self._answer_bytes += len(piece)
                self.write(piece)
                await self.flush()
        await self.finish()

    def _begin(self, answer: httpx2.Response) -> None:
        self.set_status(answer.status_code, answer.reason_phrase)
        for name in ("Server", "Content-Type", "Date"):
            self.clear_header(name)
        for name, value in answer.headers.multi_items():
            if name.lower() not in _HOP_BY_HOP - {"content-length"}:
                self.add_header(name, value)

    def _record(self) -> None:
        proxy, request = self._proxy, self.request
        headers = cast(Mapping[str, str], request.headers)
        proxy.recorder.add(
            RecordedRequest(
                at_s=round(self._began_s - proxy.began_s, 4),
                method=request.method,
                path=proxy.privacy.kept_path(request.uri),
                headers=proxy.privacy.kept_headers(headers),
                status=self._answer_status,
                answer_bytes=self._answer_bytes,
                duration_s=round(time.monotonic() - self._began_s, 4),
                **proxy.privacy.kept_body(request.body),
            )
        )


async def serve_until_stopped(url: str, host: str, port: int, recorder: Recorder, privacy: Privacy) -> None:
    """Record until this is cancelled."""
    async with recording_proxy(url, host, port, recorder, privacy) as bound:
        print(f"recording at http://{host}:{bound}, and passing on to {url}; Ctrl+C ends it", flush=True)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
