"""One HTTP request and its answer: the bridge between Tornado's connection and a model's pool.

Runs in the front end's event loop. Uses the connection directly rather than tornado.web's RequestHandler: a chunk of a
stream costs one write and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

from tornado import httputil
from tornado.http1connection import HTTP1Connection
from tornado.iostream import StreamBufferFullError

from ..dialects.base import Answer, Dialect
from ..errors import MethodError, RouteError, ServingError, TooLargeError, UnavailableError
from ..http_rules import BODILESS, HEADER_NAME, HEADER_VALUE, SERVERS_OWN
from ..protocol import Call
from .answers import error_answer, reason
from .bodies import Body
from .flights import Flight, next_id
from .routes import Match
from .served_model import ServedModel

if TYPE_CHECKING:
    from .app import FrontEnd

access_log = logging.getLogger("djl_python.access")
log = logging.getLogger(__name__)

#: Unsent bytes of an answer at which its client is cut off.
MAX_UNSENT_BYTES: Final = 8 << 20
#: A worker is told (`Taken`) each time that a client has taken this much of a stream.
TAKEN_EVERY_BYTES: Final = 256 << 10
#: A body that is too large is read to its end, so that the client sees the refusal, unless it is longer than this.
MAX_DISCARDED_BYTES: Final = 1 << 30
#: Longest body of a page: it is parsed in the front end's event loop, where everything else waits meanwhile.
MAX_PAGE_BYTES: Final = 1 << 20
#: Status in the log and the metrics for a client that left before its answer began.
CLIENT_CLOSED: Final = 499
_LENGTH_DIGITS: Final = 18  # a number of this many digits is too many bytes already


class Exchange(httputil.HTTPMessageDelegate):
    """Receives a body, sends a `Call` to the pool (or asks a page), and writes the answer. Is the pool's `Client`.

    Ends exactly once: answered, failed, or cut off.
    """

    def __init__(self, front_end: FrontEnd, request: httputil.HTTPServerRequest) -> None:
        assert isinstance(request.connection, HTTP1Connection)
        self._front_end = front_end
        self._request = request
        if "://" in request.path:  # the absolute form that proxies send: http://host/path
            request.path = urlsplit(request.path).path or "/"
        self._connection = request.connection
        self._match: Match | None = None  # None: see _refusal, or OPTIONS
        self._dialect: Dialect | None = None
        self._model: ServedModel | None = None
        self._flight: Flight | None = None
        self._body = Body(front_end.bodies)
        self._refusal: ServingError | None = None  # found before the whole body was read
        self._status = 0  # of the answer, once it is known
        self._headers: dict[str, str] = {}
        self._head_sent = False
        self._bodiless = False
        self._chunked = False
        self._close_after = False
        self._ended = False
        self._untold_bytes = 0  # of the answer, written but not yet reported to the worker as taken
        self._telling = False
        self._received_at = time.monotonic()
        self._request_id = request.headers.get(front_end.config.request_id_header_key) or uuid.uuid4().hex

    # ------------------------------------------------------------------------------------ HTTPMessageDelegate

    def headers_received(
        self, start_line: httputil.RequestStartLine | httputil.ResponseStartLine, headers: httputil.HTTPHeaders
    ) -> None:
        """Find the route. Refuse at once if the client holds its body back (100-continue) or it is too long to read."""
        self._connection.stream.set_nodelay(True)
        self._connection.set_max_body_size(MAX_DISCARDED_BYTES)
        declared = headers.get("Content-Length", "")
        # Anything but digits is left to Tornado.
        length = int(declared[:_LENGTH_DIGITS]) if declared.isascii() and declared.isdigit() else 0
        try:
            self._route()
            self._check_length(length)
        except ServingError as refusal:
            self._refusal = refusal
        waits = headers.get("Expect", "").lower() == "100-continue"
        if self._refusal is not None and (waits or length > MAX_DISCARDED_BYTES):
            self._close_after = True
            self.fail(self._refusal)

    def data_received(self, chunk: bytes) -> None:
        """Keep a piece of the body, or discard it where the request is refused."""
        self._body.size += len(chunk)
        if self._refusal is None:
            try:
                self._check_length(self._body.size)
                self._body.keep(chunk)
            except ServingError as refusal:
                self._refusal = refusal
                self._body.let_go()

    def finish(self) -> None:
        """The request is complete: hand it to a model's pool, or to its page."""
        self._received_at = time.monotonic()
        self._connection.set_close_callback(self.on_connection_close)
        try:
            if self._refusal is not None:
                raise self._refusal
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
        """Keep status and headers until the first piece of the body, which tells whether it is the whole body."""
        self._status, self._headers = status, headers

    def body(self, data: bytes, last: bool) -> None:
        """Write a piece of the answer's body; `last` ends the answer."""
        if self._ended:
            return
        stream = self._connection.stream
        stream.max_write_buffer_size = MAX_UNSENT_BYTES + len(data)  # a piece alone is never too long
        try:
            if not self._head_sent:
                self._send_head(data, last)
            elif data and not self._bodiless:
                self._write(data)
        except StreamBufferFullError:
            log.warning("a client reads too slowly: cut off", extra=self._log_extra)
            self._abandon("slow_reader")
            stream.close()
            return
        self._untold_bytes += len(data)
        if last:
            self._end()
            self._connection.finish()
            self._let_go()
        elif self._untold_bytes >= TAKEN_EVERY_BYTES and not self._telling:
            self._tell_when_taken()

    def break_off(self) -> None:
        """End an answer that can't be completed: close the connection after what was written."""
        if not self._ended:
            self._end()
            self._close_after = True
            self._let_go()

    def fail(self, error: ServingError) -> None:
        """Answer with an error; where the answer has begun, end it with one."""
        dialect, model = self._dialect, self._model or self._front_end.models.only
        config = model.config if model is not None else None
        if self._head_sent:
            headers = {name.lower(): value for name, value in self._headers.items()}
            last_words = dialect.last_words(error, headers, config) if dialect is not None else None
            if last_words is None:
                self.break_off()
            else:
                self.body(last_words, last=True)
            return
        operation = self._match.operation if self._match is not None else ""
        answer = error_answer(error, dialect, config, operation)
        if isinstance(error, MethodError):
            answer = replace(answer, headers={**answer.headers, "allow": self._allowed()})
        self._send(answer)

    # ------------------------------------------------------------------------------------ inside

    def _let_go(self) -> None:
        """Lift the limit on unsent bytes, as nothing more is written; close the connection after them if required."""
        stream = self._connection.stream
        stream.max_write_buffer_size = None
        if not stream.closed() and (self._close_after or stream.writing()):
            sent = stream.write(b"")
            self._front_end.sending(sent)
            if self._close_after:
                sent.add_done_callback(lambda _sent: stream.close())

    def _tell_when_taken(self) -> None:
        """Tell the worker once the kernel has taken everything written so far for the client."""
        size, self._untold_bytes = self._untold_bytes, 0
        if not self._connection.stream.writing():
            self._tell(size)
            return
        self._telling = True

        def told(sent: asyncio.Future[None]) -> None:
            self._telling = False
            if self._ended or sent.cancelled() or sent.exception() is not None:
                return
            self._tell(size)
            if self._untold_bytes >= TAKEN_EVERY_BYTES:
                self._tell_when_taken()

        self._connection.stream.write(b"").add_done_callback(told)

    def _tell(self, size: int) -> None:
        if self._flight is not None and self._model is not None:
            self._model.pool.taken(self._flight, size)

    def _route(self) -> None:
        routes, path, method = self._front_end.routes, self._request.path, self._request.method or ""
        if method == "OPTIONS" and routes.methods(path):
            return
        try:
            self._match = routes.match(method, path)
        except (RouteError, MethodError):
            self._dialect = routes.dialect_at(path)
            raise
        self._dialect = self._match.dialect

    def _allowed(self) -> str:
        return ", ".join(self._front_end.routes.methods(self._request.path))

    def _show(self, match: Match) -> None:
        """Answer with a page, at once or when it is done."""
        front_end = self._front_end
        if match.dialect is None:
            self._send(front_end.own_page(match.operation))
            return
        answer = match.dialect.page(match.operation, front_end.view, match.values, self._body.whole())
        if isinstance(answer, Answer):
            self._send(answer)
        else:
            # A page that has begun is finished, even if its client leaves.
            front_end.keep(asyncio.ensure_future(self._send_later(answer)))

    async def _send_later(self, answer: Awaitable[Answer]) -> None:
        try:
            self._send(await answer)
        except ServingError as error:
            self.fail(error)

    def _send(self, answer: Answer) -> None:
        self.start(answer.status, dict(answer.headers))
        self.body(answer.body, last=True)

    def _submit(self, match: Match) -> None:
        front_end, request = self._front_end, self._request
        query = tuple(parse_qsl(request.query, keep_blank_values=True))
        named = dict(query)
        headers = {name.lower(): value for name, value in request.headers.items()}
        headers["x-request-id"] = self._request_id
        body = self._body.whole()
        dialect = match.dialect
        assert dialect is not None  # the front end's own routes are pages
        name = match.model
        if not name and front_end.models.several:
            name = dialect.model_of(body) or ""
        name = name or named.get("model_name") or headers.get("model_name", "")
        version = match.version or named.get("model_version") or headers.get("model_version", "")
        self._model = front_end.models.select(name, version, dialect.unversioned)
        self._dialect = dialect = front_end.dialects[dialect.speaker(match.operation, self._model.config)]
        if front_end.draining:
            raise UnavailableError("the server is shutting down")
        call = Call(
            id=next_id(),
            dialect=dialect.name,
            operation=match.operation,
            method=request.method or "",
            path=request.path,
            query=query,
            headers=headers,
            body=body,
        )
        self._flight = self._model.pool.submit(call, self, query=match.is_query)

    def _check_length(self, length: int) -> None:
        limit = self._front_end.config.max_request_size
        if length > limit:
            raise TooLargeError(f"the body is larger than max_request_size, which is {limit} bytes")
        if length > MAX_PAGE_BYTES and self._match is not None and self._match.is_page:
            raise TooLargeError(f"the body is larger than {MAX_PAGE_BYTES} bytes, which is the most at this path")

    def _send_head(self, data: bytes, last: bool) -> None:
        headers = self._front_end.base_headers()
        for name, value in self._headers.items():
            if name.lower() not in SERVERS_OWN:
                self._add_header(headers, name, value)
        headers[self._front_end.config.request_id_header_key] = self._request_id
        self._bodiless = self._request.method == "HEAD" or self._status in BODILESS
        if last and self._status not in BODILESS:
            headers["Content-Length"] = str(len(data))
        elif not last:
            self._chunked = self._request.version == "HTTP/1.1" and not self._bodiless
            headers.setdefault("Cache-Control", "no-cache")
            if headers.get("Content-Type", "").startswith("text/event-stream"):
                headers["X-Accel-Buffering"] = "no"
            if self._request.version == "HTTP/1.0":  # no chunked encoding: closing the connection ends the answer
                self._request.headers.pop("Connection", None)
                self._close_after = True
        if self._front_end.draining:
            self._close_after = True
        if self._close_after:
            headers["Connection"] = "close"
        self._head_sent = True
        start_line = httputil.ResponseStartLine("HTTP/1.1", self._status, reason(self._status))
        self._connection.write_headers(start_line, headers, b"" if self._bodiless else data)

    def _write(self, data: bytes) -> None:
        """Write a further piece of the body, directly into the socket if it has room.

        Tornado's own write costs two futures and an event loop iteration per piece, and nothing awaits them.
        """
        stream = self._connection.stream
        sock = stream.socket
        if sock is None:
            return  # `on_connection_close` is about to be called
        framed = b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data
        try:
            sent = 0 if stream.writing() else sock.send(framed)
        except OSError:
            sent = 0  # no room, or the client has gone: the stream waits, or notices
        if sent < len(framed):
            stream.write(framed[sent:])

    def _add_header(self, headers: httputil.HTTPHeaders, name: str, value: str) -> None:
        if HEADER_NAME.fullmatch(name) and HEADER_VALUE.fullmatch(value):
            headers[name] = value
        else:
            log.warning("the response header %r can't be sent with its value: left out", name, extra=self._log_extra)

    def _abandon(self, cause: str) -> None:
        """Cancel the call: the client no longer reads its answer."""
        if self._ended:
            return
        self._end()
        if self._flight is not None and self._model is not None:
            self._model.pool.cancel(self._flight, cause)

    def _end(self) -> None:
        self._ended = True
        self._body.let_go()
        duration_s = time.monotonic() - self._received_at
        status = self._status if self._head_sent else CLIENT_CLOSED
        config, dialect = None, self._dialect
        if self._model is not None:
            config = self._model.config
            self._model.answered(status, duration_s)
        self._front_end.metrics.answered(
            config.name if config is not None else "",
            config.version if config is not None else "",
            dialect.name if dialect is not None else "",
            status,
            duration_s,
        )
        request = self._request
        access_log.log(
            logging.DEBUG if self._match is not None and self._match.is_page else logging.INFO,
            '%s "%s %s" %d %.0f ms',
            *(request.remote_ip, request.method, request.path, status, duration_s * 1000),
            extra=self._log_extra,
        )

    @property
    def _log_extra(self) -> dict[str, str]:
        return self._model.log_extra if self._model is not None else {}
