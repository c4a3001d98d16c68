"""One HTTP request, from its route to the end of its answer: the bridge between Tornado and a model's pool.

Runs in the front end's event loop. Sits on Tornado's connection, without tornado.web's RequestHandler.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from tornado import httputil
from tornado.http1connection import HTTP1Connection
from tornado.iostream import StreamBufferFullError

from ...config import ServerConfig
from ...core.errors import MethodError, RouteError, ServingError, TooLargeError, UnavailableError
from ...dialects.shared.base import Answer, Dialect, ServerView
from ...ipc.protocol import Call
from ..metrics import Metrics
from ..models.flights import Flight, next_id
from ..models.served_model import ServedModel
from ..models.table import ModelTable
from ..routes import Match, RouteTable
from .answers import error_answer
from .base_headers import BaseHeaders
from .bodies import Bodies, Body
from .connections import MAX_DISCARDED_BYTES, stream_of
from .content_coding import Decoder, decoder_of
from .draining import Draining
from .http1 import Delegate
from .request_head import RequestHead
from .response_writer import ResponseWriter

access_log = logging.getLogger("djl_python.access")
log = logging.getLogger(__name__)

#: Longest body of a page: it is parsed in the front end's event loop, where everything else waits meanwhile.
MAX_PAGE_BYTES: Final = 1 << 20
#: Status in the log and the metrics for a client that left before its answer began.
CLIENT_CLOSED: Final = 499
_LENGTH_DIGITS: Final = 18  # a number of this many digits is too many bytes already


@dataclass(frozen=True)
class Services:
    """What the exchanges of a server share.

    Attributes:
        view: the server as dialects' pages see it.
        bodies: counts the bytes of request bodies in memory.
        own_page: makes the page of this operation, where it is none of a dialect's.
    """

    config: ServerConfig
    routes: RouteTable
    dialects: Mapping[str, Dialect]
    models: ModelTable
    view: ServerView
    metrics: Metrics
    bodies: Bodies
    base_headers: BaseHeaders
    draining: Draining
    own_page: Callable[[str], Answer]


class Exchange(Delegate):
    """Receives a body, sends a `Call` to the pool (or asks a page), and writes the answer. Is the pool's `Client`.

    Ends exactly once: answered, failed, or cut off.
    """

    _head: RequestHead  # this and what follows: from `_begin` on
    _request_id: str
    _answer: ResponseWriter

    def __init__(self, services: Services, connection: httputil.HTTPConnection) -> None:
        assert isinstance(connection, HTTP1Connection)
        self._services = services
        self._connection = connection
        self._stream = stream_of(connection)
        self._match: Match | None = None  # None: see _refusal, or OPTIONS
        self._dialect: Dialect | None = None
        self._model: ServedModel | None = None
        self._flight: Flight | None = None
        self._body = Body(services.bodies)
        self._decoder: Decoder | None = None
        self._refusal: ServingError | None = None  # found before the whole body was read
        self._received_at = 0.0
        self._begun = False
        self._stream.await_client(services.config.idle_timeout_s)

    # ------------------------------------------------------------------------------------ HTTPMessageDelegate

    def headers_received(
        self, start_line: httputil.RequestStartLine | httputil.ResponseStartLine, headers: httputil.HTTPHeaders
    ) -> None:
        """Find the route. Refuse at once if the client holds its body back (100-continue) or it is too long to read."""
        assert isinstance(start_line, httputil.RequestStartLine)
        head = self._begin(RequestHead(start_line, headers))
        declared = head.headers.get("content-length", "")
        # Anything but digits is left to Tornado.
        length = int(declared[:_LENGTH_DIGITS]) if declared.isascii() and declared.isdigit() else 0
        try:
            self._route()
            head.check_host()
            self._check_length(length)
            self._decoder = decoder_of(head)
        except ServingError as refusal:
            self._refusal = refusal
        waits = head.expects_continue()
        if "close" in head.connection_options():  # Tornado knows it only where it is the only option
            self._answer.close_after = True
        if self._refusal is not None and (waits or length > MAX_DISCARDED_BYTES):
            headers.pop("Expect", None)  # or Tornado, which does not know of this answer's end, asks for the body
            self._answer.close_after = True
            self.fail(self._refusal)

    def malformed(
        self, error: ServingError, start_line: httputil.RequestStartLine, headers: httputil.HTTPHeaders
    ) -> None:
        """Refuse a request that can't be parsed, and its connection with it."""
        if not self._begun:
            self._begin(RequestHead(start_line, headers))
            with suppress(RouteError, MethodError):  # of a path that nobody serves, or that did not come
                self._route()
        if not self._answer.ended:
            self._answer.close_after = True
            self.fail(error)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """Keep a piece of the body, or discard it where the request is refused."""
        if self._decoder is not None:
            return self._decode(self._decoder, chunk)
        self._keep(chunk)
        return None

    async def _decode(self, decoder: Decoder, chunk: bytes) -> None:
        pieces = decoder.pieces(chunk)
        while self._refusal is None and not self._answer.ended:
            try:
                piece = next(pieces, None)
            except ServingError as refusal:
                self._refuse(refusal)
                return
            if piece is None:
                return
            self._keep(piece)
            await asyncio.sleep(0)  # others have their turn: the pieces may be thousands

    def _keep(self, chunk: bytes) -> None:
        self._body.size += len(chunk)
        if self._refusal is None:
            try:
                self._check_length(self._body.size)
                self._body.keep(chunk)
            except ServingError as refusal:
                self._refuse(refusal)

    def _refuse(self, refusal: ServingError) -> None:
        self._refusal = refusal
        self._body.let_go()

    def finish(self) -> None:
        """The request is complete: hand it to a model's pool, or to its page."""
        if self._answer.ended:  # refused before it was complete
            return
        if self._stream.closed():  # its client has gone, or it came behind the connection's last answer
            self._abandon("disconnect")
            return
        self._received_at = time.monotonic()
        self._stream.wait_no_more()
        self._connection.set_close_callback(self.on_connection_close)
        try:
            if self._refusal is not None:
                raise self._refusal
            if self._decoder is not None:
                self._decoder.end()
            if self._match is None:
                self._send(Answer(200, b"", {"allow": self._allowed()}))
            elif self._match.is_page:
                self._show(self._match)
            else:
                self._submit(self._match)
        except ServingError as refusal:
            self.fail(refusal)

    def on_connection_close(self) -> None:
        """The client has gone."""
        self._abandon("disconnect")

    # ------------------------------------------------------------------------------------ pool.Client

    def sent(self) -> None:
        """Release the body: a worker has it now."""
        self._body.let_go()

    def start(self, status: int, headers: dict[str, str]) -> None:
        """The answer's status and headers are known."""
        self._answer.start(status, headers)

    def body(self, data: bytes, last: bool) -> None:
        """Write a piece of the answer's body; `last` ends the answer."""
        answer = self._answer
        if answer.ended:
            return
        try:
            answer.write(data, last)
        except StreamBufferFullError:
            log.warning("a client reads too slowly: cut off", extra=answer.log_extra)
            self._abandon("slow_reader")
            self._stream.close()
            return
        if last:
            self._end()
            answer.finish()
            self._stream.await_client(self._services.config.idle_timeout_s)  # to take the answer

    def break_off(self) -> None:
        """End an answer that can't be completed, so that its client notices."""
        if not self._answer.ended:
            self._end()
            self._answer.break_off()
            self._stream.await_client(self._services.config.idle_timeout_s)  # to take what there is of it

    def fail(self, error: ServingError) -> None:
        """Answer with an error; where the answer has begun, end it with one."""
        dialect, model = self._dialect, self._model or self._services.models.only
        config = model.config if model is not None else None
        if self._answer.begun:
            headers = {name.lower(): value for name, value in self._answer.headers.items()}
            failed_stream_end = dialect.failed_stream_end(error, headers, config) if dialect is not None else None
            if failed_stream_end is None:
                self.break_off()
            else:
                self.body(failed_stream_end, last=True)
            return
        operation = self._match.operation if self._match is not None else ""
        answer = error_answer(error, dialect, config, operation)
        if isinstance(error, MethodError):
            answer = replace(answer, headers={**answer.headers, "allow": self._allowed()})
        self._send(answer)

    # ------------------------------------------------------------------------------------ inside

    def _begin(self, head: RequestHead) -> RequestHead:
        """The request's path and headers have come."""
        services = self._services
        self._received_at = time.monotonic()
        self._begun = True
        self._head = head
        given = head.headers.get(services.base_headers.request_id.lower(), "")
        # It goes into logs: terminals obey some bytes beyond ASCII.
        self._request_id = given if given and given.isascii() and given.isprintable() else os.urandom(16).hex()
        self._answer = ResponseWriter(
            services.base_headers, services.draining, self._connection, head, self._request_id, self._on_taken
        )
        self._stream.await_client(services.config.body_timeout_s)
        return head

    def _on_taken(self, size: int) -> None:
        """Tell the worker how much more of its answer the client has taken."""
        if self._flight is not None and self._model is not None:
            self._model.pool.taken(self._flight, size)

    def _route(self) -> None:
        routes, path, method = self._services.routes, self._head.path, self._head.method
        if method == "OPTIONS" and routes.methods(path):
            return
        try:
            self._match = routes.match(method, path)
        except (RouteError, MethodError):
            self._dialect = routes.dialect_at(path)
            raise
        self._dialect = self._match.dialect

    def _allowed(self) -> str:
        return ", ".join(self._services.routes.methods(self._head.path))

    def _show(self, match: Match) -> None:
        """Answer with a page, at once or when it is done."""
        services = self._services
        if match.dialect is None:
            self._send(services.own_page(match.operation))
            return
        answer = match.dialect.page(match.operation, services.view, match.values, self._body.whole())
        if isinstance(answer, Answer):
            self._send(answer)
        else:
            # A page that has begun is finished, even if its client leaves.
            services.draining.keep(asyncio.ensure_future(self._send_later(answer)))

    async def _send_later(self, answer: Awaitable[Answer]) -> None:
        try:
            self._send(await answer)
        except ServingError as error:
            self.fail(error)

    def _send(self, answer: Answer) -> None:
        self.start(answer.status, dict(answer.headers))
        self.body(answer.body, last=True)

    def _submit(self, match: Match) -> None:
        services, head = self._services, self._head
        named = dict(head.query)
        headers = {**head.headers, "x-request-id": self._request_id}
        body = self._body.whole()
        dialect = match.dialect
        assert dialect is not None  # the front end's own routes are pages
        name = match.model
        if not name and services.models.several:
            name = dialect.model_of(body) or ""
        name = name or named.get("model_name") or headers.get("model_name", "")
        version = match.version or named.get("model_version") or headers.get("model_version", "")
        self._model = services.models.select(name, version, dialect.unversioned)
        self._answer.log_extra = self._model.log_extra
        self._dialect = dialect = services.dialects[dialect.answering_dialect(match.operation, self._model.config)]
        if services.draining.begun:
            raise UnavailableError("the server is shutting down")
        call = Call(
            id=next_id(),
            dialect=dialect.name,
            operation=match.operation,
            method=head.method,
            path=head.path,
            query=head.query,
            headers=headers,
            body=body,
        )
        self._flight = self._model.pool.submit(call, self, query=match.is_query)

    def _check_length(self, length: int) -> None:
        limit = self._services.config.max_request_size
        if length > limit:
            raise TooLargeError(f"the body is larger than max_request_size, which is {limit} bytes")
        if length > MAX_PAGE_BYTES and self._match is not None and self._match.is_page:
            raise TooLargeError(f"the body is larger than {MAX_PAGE_BYTES} bytes, which is the most at this path")

    def _abandon(self, cause: str) -> None:
        """Cancel the call: the client no longer reads its answer."""
        if self._answer.ended:
            return
        self._end()
        self._answer.abandon()
        if self._flight is not None and self._model is not None:
            self._model.pool.cancel(self._flight, cause)

    def _end(self) -> None:
        """Count and log the request, whose answer is complete, cut off or wanted no more."""
        self._body.let_go()
        duration_s = time.monotonic() - self._received_at
        status = self._answer.status if self._answer.begun else CLIENT_CLOSED
        config, dialect = None, self._dialect
        if self._model is not None:
            config = self._model.config
            self._model.answered(status, duration_s)
        self._services.metrics.answered(
            config.name if config is not None else "",
            config.version if config is not None else "",
            dialect.name if dialect is not None else "",
            status,
            duration_s,
        )
        level = logging.DEBUG if self._match is not None and self._match.is_page else logging.INFO
        if access_log.isEnabledFor(level):
            head = self._head
            path = head.path.encode("ascii", "backslashreplace").decode()  # terminals obey some bytes beyond ASCII
            values = (self._stream.client, head.method, path, status, duration_s * 1000)
            # `access_log.log` would also look up the line of its caller, a quarter of its time; nothing prints it.
            record = access_log.makeRecord(
                access_log.name, level, "", 0, '%s "%s %s" %d %.0f ms', values, None, extra=self._answer.log_extra
            )
            access_log.handle(record)
