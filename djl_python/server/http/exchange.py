"""One HTTP request, from its route to the end of its answer: the bridge between Tornado and a model's pool.

Runs in the front end's event loop. Sits on Tornado's connection, without tornado.web's RequestHandler.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

from tornado import httputil
from tornado.http1connection import HTTP1Connection
from tornado.iostream import StreamBufferFullError

from ...core.errors import ForbiddenError, MethodError, RouteError, ServingError, UnavailableError
from ...dialects.shared.base import Answer, Dialect, Kind
from ...ipc.protocol import Call, Trace
from ..models.flights import Flight, next_id
from ..models.served_model import ServedModel
from ..routes import Match
from ..spans import NO_SPAN, Span
from .access import Access
from .access_log import log_request, named
from .answers import error_answer
from .bodies import Body
from .connections import MAX_DISCARDED_BYTES, stream_of
from .file_answers import FileAnswer, send_file
from .http1 import Delegate
from .request_head import RequestHead
from .response_writer import ResponseWriter
from .services import Services

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Status in the log and the metrics for a client that left before its answer began.
CLIENT_CLOSED: Final = 499


class Exchange(Delegate):
    """Receives a body, sends a `Call` to the pool (or asks a page), and writes the answer. Is the pool's `Client`.

    Ends exactly once: answered, failed, or cut off.
    """

    _head: RequestHead  # this and what follows: from `_begin` on
    _request_id: str
    _answer: ResponseWriter

    def __init__(self, services: Services, access: Access, connection: httputil.HTTPConnection) -> None:
        assert isinstance(connection, HTTP1Connection)
        self._services = services
        self._access = access
        self._connection = connection
        self._stream = stream_of(connection)
        self._match: Match | None = None  # None: see _refusal, or OPTIONS
        self._dialect: Dialect | None = None
        self._model: ServedModel | None = None
        self._flight: Flight | None = None
        self._span: Span = NO_SPAN
        self._body = Body(services.bodies)
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
        length = head.declared_length()
        try:
            self._route()
            head.check_host()
            self._services.prepare(self._body, self._match, head)
            if self._is_upload:
                self._connection.set_max_body_size(sys.maxsize)  # the receiver bounds it
        except ServingError as refusal:
            self._refusal = refusal
        waits = head.expects_continue()
        if "close" in head.connection_options():  # Tornado knows it only where it is the only option
            self._answer.close_after = True
        if self._refusal is not None and (waits or length > MAX_DISCARDED_BYTES):
            headers.pop("Expect", None)  # or Tornado, which does not know of this answer's end, asks for the body
            self._answer.close_after = True
            self.fail(self._refusal)
        elif self._refusal is not None and self._is_upload:
            self._answer_early(self._refusal)

    def malformed(
        self, error: ServingError, start_line: httputil.RequestStartLine, headers: httputil.HTTPHeaders
    ) -> None:
        """Refuse a request that can't be parsed, and its connection with it."""
        if not self._begun:
            self._begin(RequestHead(start_line, headers))
            with suppress(
                RouteError, MethodError, ForbiddenError
            ):  # of a path that nobody serves, or that did not come
                self._route()
        self._answer.close_after = True
        if self._answer.ended:
            self._answer.read_all()
        else:
            self.fail(error)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """Take a piece of the body, or discard it where the request is refused."""
        if self._refusal is None and not self._answer.ended:
            try:
                taking = self._body.take(chunk)
            except ServingError as refusal:
                self._refuse(refusal)
            else:
                return None if taking is None else self._taken(taking)
        return None

    async def _taken(self, taking: Awaitable[None]) -> None:
        try:
            await taking
        except ServingError as refusal:
            self._refuse(refusal)

    def _refuse(self, refusal: ServingError) -> None:
        self._refusal = refusal
        self._body.let_go()
        if self._is_upload and not self._answer.ended:
            self._answer_early(refusal)

    def _answer_early(self, refusal: ServingError) -> None:
        """Refuse an upload, and go on reading what is left of it: some clients read no answer before all is sent."""
        self._answer.close_after = self._answer.reads_on = True
        self._connection.set_max_body_size(MAX_DISCARDED_BYTES)
        self.fail(refusal)

    @property
    def _is_upload(self) -> bool:
        return self._match is not None and self._match.is_upload

    def finish(self) -> None:
        """The request is complete: hand it to a model's pool, or to its page."""
        if self._answer.ended:  # refused before it was complete
            self._answer.read_all()
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
            self._body.end()
            if self._match is None:
                self._send(Answer(200, b"", {"allow": self._allowed()}))
            elif self._match.is_page:
                self._show(self._match)
            elif not self._fetch(self._match):
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
        self._span.dispatched()

    def noted(self, notes: Trace) -> None:
        """Add to the request's span."""
        self._span.noted(notes)

    def start(self, status: int, headers: dict[str, str]) -> None:
        """The answer's status and headers are known."""
        self._answer.start(status, {**headers, **self._span.answer_headers})

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
        self._span.failed(error)
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
        self._answer.log_extra = named(self._request_id, head)
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
        self._access.check(self._match.route, method, self._head.headers, self._stream.client)

    def _allowed(self) -> str:
        return ", ".join(self._services.routes.methods(self._head.path))

    def _show(self, match: Match) -> None:
        """Answer with a page, at once or when it is done."""
        services, body = self._services, self._body.whole()
        if match.route.manages and services.draining.begun:
            raise UnavailableError("the server is shutting down")
        answer: Answer | Awaitable[Answer | FileAnswer]
        if self._body.receiver is not None:
            answer = self._body.receiver.answer()
        elif match.dialect is None or match.route.kind is Kind.KEPT:
            rights = self._access.rights(self._head.headers, self._stream.client)
            answer = services.own_page(match, self._head, body, rights)
        else:
            answer = match.dialect.page(match.operation, services.view, match.values, body)
        if isinstance(answer, Answer):
            self._send(answer)
        else:
            # A page that has begun is finished, even if its client leaves.
            services.draining.keep(asyncio.ensure_future(self._unless_it_fails(answer, self._send)))

    async def _unless_it_fails(self, work: Awaitable[T], then: Callable[[T], None]) -> None:
        """Go on with what `work` gives, or answer with its error, unless the client has left meanwhile."""
        try:
            result = await work
            if not self._answer.ended:
                then(result)
        except ServingError as error:
            if not self._answer.ended:
                self.fail(error)
        except BaseException:  # asyncio logs it; the client is not left waiting
            if not self._answer.ended:
                self.fail(ServingError("an unexpected error, which the server's log shows"))
            raise

    def _send(self, answer: Answer | FileAnswer) -> None:
        if isinstance(answer, FileAnswer):
            self._services.draining.keep(asyncio.ensure_future(self._send_file(answer)))
            return
        self.start(answer.status, dict(answer.headers))
        self.body(answer.body, last=True)

    async def _send_file(self, answer: FileAnswer) -> None:
        if not await send_file(answer, self, self._answer):
            self._abandon("disconnect")

    def _submit(self, match: Match) -> None:
        services, head, dialect = self._services, self._head, match.dialect
        assert dialect is not None  # the front end's own routes are pages
        self._span = services.spans.begin(head, match.route.path, self._request_id, self._received_at)
        self._answer.log_extra |= self._span.log_extra
        lazy = services.lazy
        name = match.model
        if not name and (services.models.several or lazy is not None):
            name = dialect.model_of(self._body.whole()) or ""
        name = name or head.named("model_name")
        version = match.version or head.named("model_version")
        awaited = lazy is not None and name and version in ("", dialect.unversioned) and not lazy.has(name)
        if lazy is not None and awaited and not services.draining.begun:
            loading = lazy.load(name, head.named("model_url"))
            later = self._unless_it_fails(loading, lambda _: self._submit_to(match, dialect, name, ""))
            services.draining.keep(asyncio.ensure_future(later))
        else:
            self._submit_to(match, dialect, name, version)

    def _submit_to(self, match: Match, dialect: Dialect, name: str, version: str) -> None:
        services, head = self._services, self._head
        self._model = services.models.select(services.models.with_adapter(name), version, dialect.unversioned)
        self._answer.log_extra |= self._model.log_extra
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
            headers={**head.headers, **self._span.call_headers, "x-request-id": self._request_id},
            body=self._body.whole(),
            traced=self._span.recorded,
        )
        self._span.admitted(self._model.config)
        if not services.deferred.wanted(match, call.headers):
            self._flight = self._model.pool.submit(call, self, query=match.is_query)
            return
        later = services.deferred.make(self._model, dialect, match.operation, self._body)
        later.span = self._span  # it ends with the work
        flight = self._model.pool.submit(call, later, query=match.is_query)
        self._body, self._span = Body(services.bodies), NO_SPAN  # the other body is let go once a worker has it
        self._send(later.begun(flight))

    def _fetch(self, match: Match) -> bool:
        """Answer with a part of an answer that is held, if that is what the request wants."""
        found = self._services.deferred.found(match, self._head.headers)
        if found is None:
            return False
        later, answer = found
        self._model, self._dialect = later.model, later.dialect
        self._answer.log_extra |= later.model.log_extra
        self._send(answer)
        return True

    def _abandon(self, cause: str) -> None:
        """Cancel the call: the client no longer reads its answer."""
        if self._answer.ended:
            return
        self._end(cause)
        self._answer.abandon()
        if self._flight is not None and self._model is not None:
            self._model.pool.cancel(self._flight, cause)

    def _end(self, abandoned: str = "") -> None:
        """Count and log the request, whose answer is complete, cut off or wanted no more (`abandoned`: why not)."""
        self._body.let_go()
        duration_s = time.monotonic() - self._received_at
        status = self._answer.status if self._answer.begun else CLIENT_CLOSED
        self._services.count(self._model, self._dialect, status, duration_s)
        self._span.ended(status, abandoned)
        log_request(self._match, self._stream.client, self._head, status, duration_s, self._answer.log_extra)
