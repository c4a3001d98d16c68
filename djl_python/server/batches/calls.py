"""Answers a file's request with the server's models, as if it had come over HTTP, but behind those that have.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl

from ...batch.lines import Request
from ...batch.results import NO_ANSWER, Reply
from ...batch.runner import NoReplyError, NotTakenError
from ...core.errors import HandlerError, OverloadedError, RouteError, ServingError, UnavailableError
from ...dialects.shared.base import Answer, Dialect, Kind
from ...formats.json_framing import JSON
from ...ipc.protocol import Call, Trace
from ..http.answers import error_answer
from ..http.exchange import CLIENT_CLOSED
from ..metrics import Metrics
from ..models.flights import Flight, next_id
from ..models.lazy_models import LazyModels
from ..models.served_model import ServedModel
from ..models.table import ModelTable
from ..routes import Match, RouteTable
from ..spans import NO_SPANS, Batched, Span, Spans


@dataclass(frozen=True)
class Origin:
    """The batch that a request is of. `created`: see `Spans.batch_created`."""

    batch_id: str = ""
    created: Mapping[str, str] = field(default_factory=dict)


_NO_BATCH: Final = Origin()
#: Answers that say that a request was not taken.
_NOT_TAKEN: Final = (429, 503)


class Calls:
    """The models of a server, for batches. `lazy` loads models that nobody has registered; None: nothing does."""

    def __init__(
        self,
        routes: RouteTable,
        dialects: Mapping[str, Dialect],
        models: ModelTable,
        metrics: Metrics,
        lazy: LazyModels | None = None,
        spans: Spans = NO_SPANS,
    ) -> None:
        self._metrics = metrics
        self._spans = spans
        self._routes = routes
        self._dialects = dialects
        self._models = models
        self._lazy = lazy

    async def send(self, request: Request, origin: Origin = _NO_BATCH) -> Reply:
        """The reply to a request; one that is refused gets the error that its API has for that.

        Raises:
            NotTakenError, NoReplyError: see `Send`.
        """
        path, _, query = request.url.partition("?")
        dialect: Dialect | None = self._routes.dialect_at(path)
        request_id = os.urandom(16).hex()
        name = version = ""
        try:
            match = self._routes.match("POST", path)
            if match.route.kind not in (Kind.GENERATE, Kind.QUERY) or match.dialect is None:
                raise RouteError(f"{path} is not for batches")
            dialect = match.dialect
            model = await self._model(match, dialect, request.body)
            name, version = model.config.name, model.config.version
            span = self._spans.begin_batched(
                Batched(path, request_id, origin.batch_id, request.custom_id, origin.created)
            )
            answering = self._dialects[dialect.answering_dialect(match.operation, model.config)]
            call = Call(
                id=next_id(),
                dialect=answering.name,
                operation=match.operation,
                method="POST",
                path=path,
                query=tuple(parse_qsl(query, keep_blank_values=True)),
                headers={"content-type": JSON, **span.call_headers, "x-request-id": request_id},
                body=request.body,
                traced=span.recorded,
            )
            reply = await _Answer(answering, model, match, span).to(call)
        except ServingError as error:
            reply = _refused(error, error_answer(error, dialect, None))
        except NoReplyError:
            self._metrics.batch_answered(name, version, NO_ANSWER)
            raise
        if reply.status in _NOT_TAKEN:
            raise NotTakenError(reply.body[:300].decode(errors="replace"))
        self._metrics.batch_answered(name, version, str(reply.status))
        return Reply(reply.status, reply.body, request_id)

    async def _model(self, match: Match, dialect: Dialect, body: bytes) -> ServedModel:
        name = match.model
        if not name and (self._models.several or self._lazy is not None):
            name = dialect.model_of(body) or ""
        if self._lazy is not None and name and not match.version and not self._lazy.has(name):
            await self._lazy.load(name)
        return self._models.select(name, match.version, dialect.unversioned)


class _Answer:
    """The answer to one call. Is the pool's `Client`.

    The span of a call that was not taken does not end, and is recorded nowhere: another try has its own.
    """

    def __init__(self, dialect: Dialect, model: ServedModel, match: Match, span: Span) -> None:
        self._dialect = dialect
        self._span = span
        self._model = model
        self._match = match
        self._flight: Flight | None = None
        self._status = 200
        self._pieces: list[bytes] = []
        self._reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    async def to(self, call: Call) -> Reply:
        """Have the call answered. Cancelled, it takes the call back."""
        pool = self._model.pool
        self._span.admitted(self._model.config)
        self._flight = flight = pool.submit_behind(call, self)
        try:
            return await self._reply
        except asyncio.CancelledError:
            pool.cancel(flight, "disconnect")
            self._span.ended(CLIENT_CLOSED, "cancelled")
            raise

    # ------------------------------------------------------------------------------------ pool.Client

    def sent(self) -> None:
        """The body is the input file's: there is nothing to let go."""
        self._span.dispatched()

    def start(self, status: int, headers: dict[str, str]) -> None:
        """Keep the status."""
        self._status = status

    def body(self, data: bytes, last: bool) -> None:
        """Keep a piece."""
        self._pieces.append(data)
        if last:
            self._replied(Reply(self._status, b"".join(self._pieces)))
        elif self._flight is not None:
            self._model.pool.taken(self._flight, len(data))

    def noted(self, notes: Trace) -> None:
        """Add to the request's span."""
        self._span.noted(notes)

    def break_off(self) -> None:
        """The answer ends incomplete."""
        broken = HandlerError("the answer ended before it was complete")
        self._span.failed(broken)
        self._span.ended(self._status)
        self._end(NoReplyError(broken.message))

    def fail(self, error: ServingError) -> None:
        """The error is the reply, unless it says nothing of the request."""
        answer = error_answer(error, self._dialect, self._model.config, self._match.operation)
        try:
            reply = _refused(error, answer)
        except NotTakenError as exc:
            self._end(exc)
            return
        self._span.failed(error)
        self._replied(reply)

    def _replied(self, reply: Reply) -> None:
        if reply.status not in _NOT_TAKEN:
            self._span.ended(reply.status)
        self._end(reply)

    def _end(self, outcome: Reply | Exception) -> None:
        if self._reply.done():  # cancelled
            return
        if isinstance(outcome, Reply):
            self._reply.set_result(outcome)
        else:
            self._reply.set_exception(outcome)


def _refused(error: ServingError, answer: Answer) -> Reply:
    """The reply that an error is.

    Raises:
        NotTakenError: it says nothing of the request.
    """
    if isinstance(error, OverloadedError | UnavailableError):
        raise NotTakenError(error.message, error.retry_after_s)
    return Reply(answer.status, answer.body)
