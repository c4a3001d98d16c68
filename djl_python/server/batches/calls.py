"""Answers a file's request with the server's models, as if it had come over HTTP, but after those that have.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl

from ...batch.lines import RequestLine
from ...batch.results import NO_ANSWER, BatchReply
from ...batch.runner import NoReplyError, NotTakenError
from ...core.errors import (
    HandlerError,
    OverloadedError,
    RouteError,
    ServingError,
    UnavailableError,
)
from ...core.turns.precedence import ANY, Precedence
from ...dialects.shared.base import Answer, Dialect, Kind
from ...formats.json_framing import JSON
from ...ipc.protocol import Call, Trace, UsageReport
from ..dispatch.dispatch import Dispatch
from ..dispatch.hold import Hold
from ..dispatch.request import ModelRequest
from ..http.answers import error_answer
from ..http.exchange import CLIENT_CLOSED
from ..metrics.metrics import Metrics
from ..models.pool.flights import Flight
from ..models.served_model import ServedModel
from ..routes import RouteTable
from ..spans import NO_SPANS, Batched, Span, Spans


@dataclass(frozen=True)
class Origin:
    """The batch of a request, and its `Sender`.

    Attributes:
        created: see `Spans.batch_created`.
        models: those that it may use; none: all.
        precedence: that of its requests, before they are marked as a batch's.
    """

    batch_id: str = ""
    created: Mapping[str, str] = field(default_factory=dict)
    models: Collection[str] = ()
    precedence: Precedence = ANY

    def may_use(self, name: str) -> bool:
        """Whether it may use a model of this name."""
        return not self.models or name in self.models

    def begin(self, call: Call, *, query: bool) -> Call:
        """A batch's tokens are nobody's: it takes what others leave."""
        return call

    def ended(self) -> None:
        """Nothing has been counted."""


_NO_BATCH: Final = Origin()
#: Statuses of answers to requests that were not taken.
_NOT_TAKEN: Final = (429, 503)


class Calls:
    """The models of a server, for batches."""

    def __init__(self, routes: RouteTable, dispatch: Dispatch, metrics: Metrics, spans: Spans = NO_SPANS) -> None:
        self._routes = routes
        self._dispatch = dispatch
        self._metrics = metrics
        self._spans = spans

    async def send(self, request: RequestLine, origin: Origin = _NO_BATCH) -> BatchReply:
        """The reply to a request; a refused one gets its API's error.

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
            wanted = ModelRequest(
                match=match,
                dialect=dialect,
                sender=origin,
                request_id=request_id,
                method="POST",
                path=path,
                query=tuple(parse_qsl(query, keep_blank_values=True)),
                headers={"content-type": JSON},
                body=request.body,
                background=True,
            )
            with Hold() as hold:
                loaded = self._dispatch.model_of(wanted, hold)
                model = loaded if isinstance(loaded, ServedModel) else await loaded
                name, version = model.config.name, model.config.version
                span = self._spans.begin_batched(
                    Batched(path, request_id, origin.batch_id, request.custom_id, origin.created)
                )
                answer = _Answer(self._dispatch, wanted, model, span)
                answer.begin()
            reply = await answer.reply()
        except ServingError as error:
            reply = _refused(error, error_answer(error, dialect, None))
        except NoReplyError:
            self._metrics.batch_answered(name, version, NO_ANSWER)
            raise
        if reply.status in _NOT_TAKEN:
            raise NotTakenError(reply.body[:300].decode(errors="replace"))
        self._metrics.batch_answered(name, version, str(reply.status))
        return BatchReply(reply.status, reply.body, request_id)


class _Answer:
    """The answer to one call. Is the pool's `Client`.

    The span of a call that was not taken is dropped: the next try has its own.
    """

    def __init__(self, dispatch: Dispatch, request: ModelRequest, model: ServedModel, span: Span) -> None:
        self._dispatch = dispatch
        self._request = request
        self._model = model
        self._dialect = dispatch.answering(request, model)
        self._span = span
        self._flight: Flight | None = None
        self._status = 200
        self._pieces: list[bytes] = []
        self._reply: asyncio.Future[BatchReply] = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        """Have the request answered. Raises as `Dispatch.submit`."""
        self._span.admitted(self._model.config)
        self._flight = self._dispatch.submit(self._request, self._model, self._dialect, self, self._span)

    async def reply(self) -> BatchReply:
        """The reply, once it has begun. Cancelled, take it back."""
        assert self._flight is not None
        try:
            return await self._reply
        except asyncio.CancelledError:
            self._model.pool.cancel(self._flight, "disconnect")
            self._span.ended(CLIENT_CLOSED, "cancelled")
            raise

    # ------------------------------------------------------------------------------------ pool.Client

    def sent(self) -> None:
        """Nothing to release: the body belongs to the input file."""
        self._span.dispatched()

    def start(self, status: int, headers: dict[str, str]) -> None:
        """Keep the status."""
        self._status = status

    def body(self, data: bytes, last: bool) -> None:
        """Keep a piece."""
        self._pieces.append(data)
        if last:
            self._replied(BatchReply(self._status, b"".join(self._pieces)))
        elif self._flight is not None:
            self._model.pool.taken(self._flight, len(data))

    def noted(self, notes: Trace) -> None:
        """Add to the request's span."""
        self._span.noted(notes)

    def used(self, usage: UsageReport) -> None:
        """A batch's tokens are nobody's: it takes what others leave."""

    def break_off(self) -> None:
        """The answer ends incomplete."""
        broken = HandlerError("the answer ended before it was complete")
        self._span.failed(broken)
        self._span.ended(self._status)
        self._end(NoReplyError(broken.message))

    def fail(self, error: ServingError) -> None:
        """The error is the reply, unless it is not about the request."""
        match = self._request.match
        answer = error_answer(error, self._dialect, self._model.config, match.operation)
        try:
            reply = _refused(error, answer)
        except NotTakenError as exc:
            self._end(exc)
            return
        self._span.failed(error)
        self._replied(reply)

    def _replied(self, reply: BatchReply) -> None:
        if reply.status not in _NOT_TAKEN:
            self._span.ended(reply.status)
        self._end(reply)

    def _end(self, outcome: BatchReply | Exception) -> None:
        if self._reply.done():  # cancelled
            return
        if isinstance(outcome, BatchReply):
            self._reply.set_result(outcome)
        else:
            self._reply.set_exception(outcome)


def _refused(error: ServingError, answer: Answer) -> BatchReply:
    """The reply for an error.

    Raises:
        NotTakenError: it is not about the request.
    """
    if isinstance(error, OverloadedError | UnavailableError):
        raise NotTakenError(error.message, error.retry_after_s)
    return BatchReply(answer.status, answer.body)
