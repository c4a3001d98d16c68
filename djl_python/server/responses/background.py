"""Makes a response whose client does not wait for it. Runs in the front end's event loop."""

from __future__ import annotations

from collections.abc import Callable

from ...core.errors import HandlerError, ServingError
from ...dialects.shared.openai.responses import ENDED, failed_event, failed_with, response_in, status_of, with_status
from ...ipc.protocol import Trace, UsageReport
from ..dispatch.request import ModelRequest
from ..keys.callers import Caller
from ..models.pool.flights import Flight
from ..models.served_model import ServedModel
from ..spans import Span
from .events import EventLog
from .kept import Kept
from .store import Store

_OK = 200


class BackgroundResponse:
    """One response, from its call to its end. Is the pool's `Client`.

    Args:
        queued: the response as its client got it.
        caller: who asked for it.
        span: of the request.
        events: where they go, if it is made as a stream.
        on_over: called once nothing more comes of it.
    """

    def __init__(
        self,
        store: Store,
        kept: Kept,
        queued: bytes,
        request: ModelRequest,
        model: ServedModel,
        caller: Caller,
        span: Span,
        events: EventLog | None,
        on_over: Callable[[], object],
    ) -> None:
        self._store = store
        self._kept = kept
        self._queued = queued
        self._dialect = request.dialect  # and not its body, which a worker has
        self._operation = request.match.operation
        self._model = model
        self._caller = caller
        self._span = span
        self._events = events
        self._on_over = on_over
        self._status = 0
        self._over = False
        self._pieces: list[bytes] = []
        self.flight: Flight | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more comes of it."""
        return self._over

    def cancel(self) -> bytes:
        """Have it made no further; the cancelled response."""
        if self.flight is not None:
            self._model.pool.cancel(self.flight, "disconnect")
        cancelled = with_status(self._queued, "cancelled")
        self._end(cancelled, "cancelled")
        return cancelled

    # ------------------------------------------------------------------------------------ pool.Client

    def sent(self) -> None:
        """A worker has the call."""
        self._span.dispatched()
        self._store.update(self._kept, with_status(self._queued, "in_progress"), "in_progress")

    def noted(self, notes: Trace) -> None:
        """Add to the request's span."""
        self._span.noted(notes)

    def used(self, usage: UsageReport) -> None:
        """Count the tokens as the caller's."""
        self._caller.used(usage.prompt_tokens, usage.generated_tokens)

    def start(self, status: int, headers: dict[str, str]) -> None:
        """Keep the status."""
        self._status = status

    def body(self, data: bytes, last: bool) -> None:
        """Keep a piece."""
        if self._over:
            return
        events = self._events if self._status == _OK else None
        if not last:
            if events is None:
                self._pieces.append(data)
            if not self._store.grow(self._kept, len(data) if events is None else events.add(data)):
                self._give_up()
            elif self.flight is not None:
                self._model.pool.taken(self.flight, len(data))
        elif events is not None:
            self._end_stream(events, data)
        elif self._status == _OK:
            self._end_with(b"".join((*self._pieces, data)))
        else:
            self._fail(self._status, b"".join((*self._pieces, data)))

    def break_off(self) -> None:
        """The answer ends incomplete."""
        self.fail(HandlerError("the answer ended before it was complete"))

    def fail(self, error: ServingError) -> None:
        """The error is the response's."""
        self._span.failed(error)
        answer = self._dialect.error(error, self._model.config, operation=self._operation)
        self._fail(answer.status, answer.body)

    # ------------------------------------------------------------------------------------ inside

    def _give_up(self) -> None:
        """There is no room for more of it."""
        if self.flight is not None:
            self._model.pool.cancel(self.flight, "slow_reader")
        self.fail(self._store.full())

    def _end_stream(self, events: EventLog, data: bytes) -> None:
        """The last events. Whoever reads of the end finds the response as it has ended."""
        self._end_with(response_in(data.rstrip().rpartition(b"\n\n")[2] or events.last), data)

    def _end_with(self, response: bytes, last_events: bytes = b"") -> None:
        """It is complete, unless what a handler of the user's has answered is none, or an error without a number."""
        if (status := status_of(response)) in ENDED:
            self._end(response, status, last_events)
        else:
            self.break_off()

    def _fail(self, status: int, body: bytes) -> None:
        self._status = status
        failed = failed_with(self._queued, status, body)
        told = b""
        if self._events is not None:
            self._store.grow(self._kept, self._events.drop_incomplete())
            told = failed_event(len(self._events), failed)
        self._end(failed, "failed", told)

    def _end(self, response: bytes, status: str, last_events: bytes = b"") -> None:
        if self._over:  # it was cancelled, and this is what came of it since
            return
        self._over = True
        self._store.grow(self._kept, -sum(map(len, self._pieces)))
        self._pieces.clear()
        self._span.ended(self._status or _OK)
        self._store.update(self._kept, response, status)
        if self._events is not None:
            self._store.grow(self._kept, self._events.add(last_events))
            self._events.end()
            self._store.forget_events_later(self._kept)
        self._events = self.flight = None  # a worker that does not let go of the call holds none of it
        self._on_over()
