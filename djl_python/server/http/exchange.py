"""One HTTP request, from its route to the end of its answer: the bridge between Tornado and a model's pool.

Runs in the front end's event loop. Sits on Tornado's connection, without tornado.web's RequestHandler.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

from tornado import httputil
from tornado.http1connection import HTTP1Connection
from tornado.iostream import StreamBufferFullError

from ...core.errors import MethodError, ServingError, UnavailableError
from ...dialects.shared.base import Answer
from ...ipc.protocol import Trace, UsageReport
from ..connections.stream import stream_of
from ..dispatch.early_stream import EarlyStream
from ..dispatch.hold import Hold
from ..dispatch.request import BeingKept, ModelRequest
from ..models.pool.flights import Flight
from ..models.served_model import ServedModel
from ..routes import Match
from ..spans import NO_SPAN, Span
from .access import Access
from .access_log import log_request, named
from .answers import error_answer
from .file_answers import AnyAnswer, FileAnswer, send_file, send_stream
from .http1 import Delegate
from .requests.incoming import IncomingRequest
from .requests.request_head import RequestHead
from .response_writer import ResponseWriter
from .server import MAX_DISCARDED_BYTES
from .services import Services

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Status in the log and the metrics for a client that left before its answer began.
CLIENT_CLOSED: Final = 499


class Exchange(Delegate):
    """Receives a body, sends a `Call` to the pool (or asks a page), and writes the answer. Is the pool's `Client`.

    Ends exactly once: answered, failed, or cut off.
    """

    _request: IncomingRequest  # this and what follows: from `_begin` on
    _answer: ResponseWriter

    def __init__(self, services: Services, access: Access, connection: httputil.HTTPConnection) -> None:
        assert isinstance(connection, HTTP1Connection)
        self._services = services
        self._access = access
        self._connection = connection
        self._stream = stream_of(connection)
        self._model: ServedModel | None = None
        self._flight: Flight | None = None
        self._span: Span = NO_SPAN
        self._keeping: BeingKept | None = None
        self._early: EarlyStream | None = None  # where the model has to be loaded
        self._sending: asyncio.Future[bool] | None = None  # a page's pieces, as they come
        self._finding: asyncio.Future[None] | None = None  # the model, which may have to be loaded
        self._begun = False
        self._stream.await_request(services.config.idle_timeout_s, services.config.header_timeout_s)

    # ------------------------------------------------------------------------------------ HTTPMessageDelegate

    def headers_received(
        self, start_line: httputil.RequestStartLine | httputil.ResponseStartLine, headers: httputil.HTTPHeaders
    ) -> None:
        """Find the route. Refuse at once if the client holds its body back (100-continue) or the body is too long to
        read.
        """
        assert isinstance(start_line, httputil.RequestStartLine)
        head = RequestHead(start_line, headers)
        request = self._begin(head)
        length = head.declared_length()
        try:
            request.admit()
            if request.is_upload:
                self._connection.set_max_body_size(sys.maxsize)  # the receiver bounds it
        except ServingError as refusal:
            request.refusal = refusal
        waits = head.expects_continue()
        if "close" in head.connection_options():  # Tornado knows it only where it is the only option
            self._answer.close_after = True
        if request.refusal is not None and (waits or length > MAX_DISCARDED_BYTES):
            headers.pop("Expect", None)  # or Tornado, which does not know of this answer's end, asks for the body
            self._answer.close_after = True
            self.fail(request.refusal)
        elif request.refusal is not None and request.is_upload:
            self._answer_early(request.refusal)

    def malformed(
        self, error: ServingError, start_line: httputil.RequestStartLine, headers: httputil.HTTPHeaders
    ) -> None:
        """Refuse a request that can't be parsed, and its connection with it."""
        if not self._begun:
            self._begin(RequestHead(start_line, headers))
            with suppress(ServingError):  # the path is unknown, or did not arrive
                self._request.route()
        self._answer.close_after = True
        if self._answer.ended:
            self._answer.read_all()
        else:
            self.fail(error)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """Take a piece of the body, or discard it where the request is refused."""
        if self._request.refusal is None and not self._answer.ended:
            try:
                taking = self._request.body.take(chunk)
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
        self._request.refusal = refusal
        self._request.body.let_go()
        if self._request.is_upload and not self._answer.ended:
            self._answer_early(refusal)

    def _answer_early(self, refusal: ServingError) -> None:
        """Refuse an upload, and go on reading what is left of it: some clients read no answer before all is sent."""
        self._answer.close_after = self._answer.reads_on = True
        self._connection.set_max_body_size(MAX_DISCARDED_BYTES)
        self.fail(refusal)

    def finish(self) -> None:
        """The request is complete: hand it to a model's pool, or to its page."""
        if self._answer.ended:  # refused before it was complete
            self._answer.read_all()
            return
        if self._stream.closed():  # its client has gone, or it came after the connection's last answer
            self._abandon("disconnect")
            return
        request = self._request
        request.received_at = time.monotonic()
        self._stream.wait_no_more()
        self._connection.set_close_callback(self.on_connection_close)
        try:
            if request.refusal is not None:
                raise request.refusal
            request.body.end()
            if request.match is None:
                self._send(request.preflight())
            elif request.match.is_page:
                self._show(request.match)
            elif not self._fetch(request.match):
                self._submit(request.match)
        except ServingError as refusal:
            self.fail(refusal)

    def on_connection_close(self) -> None:
        """The client has gone."""
        self._abandon("disconnect")

    # ------------------------------------------------------------------------------------ pool.Client

    def sent(self) -> None:
        """Release the body: a worker has it now."""
        self._request.body.let_go()
        self._span.dispatched()

    def noted(self, notes: Trace) -> None:
        """Add to the request's span."""
        self._span.noted(notes)

    def used(self, usage: UsageReport) -> None:
        """Count the tokens as the caller's."""
        self._request.caller.used(usage.prompt_tokens, usage.generated_tokens)

    def start(self, status: int, headers: dict[str, str]) -> None:
        """The answer's status and headers are known."""
        if self._early is not None and self._early.begun:
            self._early.started(status, headers)
            return
        self._answer.start(status, {**headers, **self._span.answer_headers, **self._request.caller.headers})

    def body(self, data: bytes, last: bool) -> None:
        """Write a piece of the answer's body; `last` ends the answer."""
        answer = self._answer
        if answer.ended:
            return
        if self._early is not None and self._early.begun and self._request.dialect is not None:
            given, data = len(data), self._early.piece(data, last, self._request.dialect)
            if not data and not last:
                self._on_taken(given)  # it waits for the others, which the worker would not send
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
            self._stream.await_client(self._services.config.idle_timeout_s)  # to take the part that there is

    def fail(self, error: ServingError) -> None:
        """Answer with an error; where the answer has begun, end it with one."""
        dialect, model = self._request.dialect, self._model or self._services.models.only
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
        operation = "" if (match := self._request.match) is None else match.operation
        answer = error_answer(error, dialect, config, operation)
        if isinstance(error, MethodError):
            answer = replace(answer, headers={**answer.headers, "allow": self._request.allowed})
        self._send(answer)

    # ------------------------------------------------------------------------------------ inside

    def _begin(self, head: RequestHead) -> IncomingRequest:
        """The request's path and headers have come."""
        services = self._services
        self._request = request = IncomingRequest(services, self._access, self._stream.client, head)
        self._begun = True
        self._answer = ResponseWriter(
            services.base_headers, services.draining, self._connection, head, request.id, self._on_taken
        )
        self._answer.log_extra = named(request.id, head)
        self._stream.await_body(services.config.body_timeout_s)
        return request

    def _on_taken(self, size: int) -> None:
        """Tell the worker how much more of its answer the client has taken."""
        if self._flight is not None and self._model is not None:
            self._model.pool.taken(self._flight, size)

    def _show(self, match: Match) -> None:
        """Answer with a page, at once or when it is done."""
        request = self._request
        answer = self._services.page(match, request.head, request.body, request.rights, request.caller)
        if not isinstance(answer, Awaitable):
            self._send(answer)
        else:
            # A page that has begun is finished, even if its client leaves.
            self._services.draining.keep(asyncio.ensure_future(self._unless_it_fails(answer, self._send)))

    def _when(self, ready: T | Awaitable[T], then: Callable[[T], None]) -> asyncio.Future[None] | None:
        """Continue with a result, at once, or in the task that is returned, when it is there."""
        if not isinstance(ready, Awaitable):
            then(ready)
            return None
        task = asyncio.ensure_future(self._unless_it_fails(ready, then))
        self._services.draining.keep(task)
        return task

    async def _unless_it_fails(self, work: Awaitable[T], then: Callable[[T], None]) -> None:
        """Continue with the result of `work`, or answer with its error, unless the client has left meanwhile."""
        try:
            result = await work
            if not self._answer.ended:
                then(result)
        except ServingError as error:
            if not self._answer.ended:
                self.fail(error)
        except BaseException:  # asyncio logs it, unless it is a cancellation; the client is not left waiting
            if not self._answer.ended:
                self.fail(ServingError("an unexpected error, which the server's log shows"))
            raise

    def _send(self, answer: AnyAnswer) -> None:
        if isinstance(answer, Answer):
            self.start(answer.status, dict(answer.headers))
            self.body(answer.body, last=True)
        elif isinstance(answer, FileAnswer):
            self._when(send_file(answer, self, self._answer), self._sent_pieces)
        else:
            self._sending = asyncio.ensure_future(send_stream(answer, self, self._answer))
            self._when(self._sending, self._sent_pieces)

    def _sent_pieces(self, client_stayed: bool) -> None:
        if not client_stayed:
            self._abandon("disconnect")

    def _submit(self, match: Match) -> None:
        """Have a model answer, once it is found and loaded."""
        services, incoming, dialect = self._services, self._request, match.dialect
        assert dialect is not None  # the front end's own routes are pages
        self._span = services.spans.begin(incoming.head, match.route.path, incoming.id, incoming.received_at)
        self._answer.log_extra |= self._span.log_extra
        request = incoming.for_model(match, dialect)
        if (unloading := services.dispatch.unloading(request)) is not None:
            self._model, answer = unloading
            self._send(answer)
            return
        finding = self._when(services.responses.prepared(request, self._request.caller.key), self._find_model)
        self._finding = self._finding or finding

    def _find_model(self, request: ModelRequest) -> None:
        hold = Hold()
        model = self._services.dispatch.model_of(request, hold)
        if isinstance(model, ServedModel):
            with hold:
                self._submit_to(model, request, hold)
        else:
            self._finding = self._when(self._submit_once_loaded(model, request, hold), _nothing)

    async def _submit_once_loaded(self, loading: Awaitable[ServedModel], request: ModelRequest, hold: Hold) -> None:
        with hold:
            model = await self._loaded(loading, request, hold)
            if not self._answer.ended:
                self._submit_to(model, request, hold)

    async def _loaded(self, loading: Awaitable[ServedModel], request: ModelRequest, hold: Hold) -> ServedModel:
        """The model, once it is loaded."""
        task, draining = asyncio.ensure_future(loading), self._services.draining
        draining.waiting(task)
        try:
            self._early = EarlyStream()
            await self._early.wait(task, request, self, hold.model)
            if task.cancelled() and draining.begun:
                raise UnavailableError("the server is shutting down")
            return await task
        finally:
            task.cancel()  # the client has left: the request, its body and its place are held no longer

    def _submit_to(self, model: ServedModel, request: ModelRequest, hold: Hold) -> None:
        services, match = self._services, request.match
        self._model = model
        self._answer.log_extra |= model.log_extra
        self._request.dialect = dialect = services.dispatch.answering(request, model)
        if services.draining.begun:
            raise UnavailableError("the server is shutting down")
        self._span.admitted(model.config)
        if request.keeping is not None and request.keeping.background:
            begun = services.responses.begin(request, model, dialect, self._request.caller, self._span)
            self._span = NO_SPAN  # it ends with the work
            self._when(_holding(hold.pop_all(), begun), self._send)
            return
        if not services.deferred.wanted(match, request.headers):
            self._keeping = request.keeping
            client = services.responses.client(request, self, self._request.caller.key)
            self._flight = services.dispatch.submit(request, model, dialect, client, self._span)
            return
        later = services.deferred.make(model, dialect, match.operation, self._request.body, self._request.caller)
        later.span = self._span  # it ends with the work
        flight = services.dispatch.submit(request, model, dialect, later, self._span)
        self._request.give_body_away()  # it is let go once a worker has it
        self._span = NO_SPAN
        self._send(later.begun(flight))

    def _fetch(self, match: Match) -> bool:
        """Answer with a part of an answer that is held, if that is what the request wants."""
        held = self._services.deferred.find(match, self._request.head.headers, self._request.caller.key)
        if held is None:
            return False
        later, answer = held
        self._model, self._request.dialect = later.model, later.dialect
        self._answer.log_extra |= later.model.log_extra
        self._send(answer)
        return True

    def _abandon(self, cause: str) -> None:
        """Cancel the call: the client no longer reads its answer."""
        if self._answer.ended:
            return
        self._end(cause)
        self._answer.abandon()
        if self._sending is not None:
            self._sending.cancel()  # its next piece may be hours away
        if self._finding is not None and self._flight is None:
            self._finding.cancel()  # so may the model be
        if self._flight is not None and self._model is not None:
            self._model.pool.cancel(self._flight, cause)

    def _end(self, abandoned: str = "") -> None:
        """Count and log the request. Its answer is complete, cut off or abandoned (`abandoned`: why)."""
        request = self._request
        request.body.let_go()
        if self._keeping is not None:
            self._keeping.end()
        duration_s = time.monotonic() - request.received_at
        status = self._answer.status if self._answer.begun else CLIENT_CLOSED
        self._services.count(self._model, request.dialect, status, duration_s)
        request.caller.answered(status)
        self._span.ended(status, abandoned)
        log_request(request.match, request.caller, request.head, status, duration_s, self._answer.log_extra)


def _nothing(_done: None) -> None:
    """Nothing is left to do."""


async def _holding(hold: Hold, work: Awaitable[T]) -> T:
    """The result of `work`, until which its model stays loaded."""
    with hold:
        return await work
