"""Calls in progress, and the workers that have them, as the pool tracks them.

Runs in the front end's event loop; knows neither HTTP nor processes.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Protocol

from ...core.engine_info import EngineInfo
from ...core.errors import ServingError
from ...ipc.protocol import AnyMessage, Call, Trace


class Client(Protocol):
    """The origin of a call, which is told what to write. No method raises."""

    def sent(self) -> None:
        """The call has been sent to a worker; its body need not be held any more."""
        ...

    def start(self, status: int, headers: dict[str, str]) -> None:
        """The answer's status and headers; once, before `body`."""
        ...

    def body(self, data: bytes, last: bool) -> None:
        """All body bytes of this answer in one read from the worker, b"" for a start alone; `last` ends the answer."""
        ...

    def noted(self, notes: Trace) -> None:
        """Something for the call's span, before the answer's end; only for a call that is traced."""
        ...

    def break_off(self) -> None:
        """The answer, which has begun, ends incomplete."""
        ...

    def fail(self, error: ServingError) -> None:
        """The call has failed: no answer, or no more of it, will come."""
        ...


class Worker(Protocol):
    """A loaded worker, as the pool sees it."""

    name: str
    capacity: int  # calls that it takes
    at_once: int  # of these, how many run at once: the others wait in it
    queries: int  # queries that it takes in addition; 0: queries count as calls
    engine: EngineInfo | None  # what runs its model, if it has an engine
    spare: bool  # whether it may go again when there is less to do: of two that have as much, it is given no more

    def send(self, message: AnyMessage) -> None:
        """Queue a message for the worker.

        Raises:
            ValueError: the message is too long to be sent.
        """
        ...

    def flush(self) -> None:
        """Send the queued messages now."""
        ...

    def said(self, message: AnyMessage) -> None:
        """Handle a message from the worker that is about no call."""
        ...

    def hang_up(self, reason: str) -> None:
        """End the worker, which no longer answers. `Pool.remove` follows."""
        ...


class Flight:
    """One call, from its admission to its end.

    Attributes:
        query: whether the call is a query, which generates nothing.
        background: whether it is a batch's: others go before it, and it takes a part of the places only.
        beside: whether it takes one of the worker's places for queries, and none of those for calls.
        heard_at: when its answer last progressed, in the loop's time.
    """

    __slots__ = (
        "accepted_s",
        "background",
        "beside",
        "broken",
        "call",
        "client",
        "dispatched_at",
        "heard_at",
        "id",
        "last",
        "pieces",
        "query",
        "timer",
        "worker",
    )

    def __init__(self, call: Call, client: Client, now: float, query: bool, *, background: bool = False) -> None:
        self.id = call.id
        self.query = query
        self.background = background
        self.beside = False
        self.call: Call | None = call  # dropped once sent: the body may be large
        self.client = client
        self.accepted_s = time.monotonic()  # an event loop's own clock may stand still within an iteration
        self.dispatched_at = self.heard_at = now
        self.worker: Place | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.pieces: list[bytes] = []
        self.last = False
        self.broken = False


class Place:
    """A worker and the calls that it has.

    Attributes:
        leaving: calls whose clients have gone, until the worker says that it has released them: a running function
            can't be interrupted.
        heard_at: when the worker last sent anything, on the loop's clock, in seconds.
        suspect: a call has timed out, and nothing has come since: no new calls until something does, or for some time.
        silences: how many calls in a row timed out while the worker sent nothing.
        idle_since_s: since when it has no call, in `time.monotonic`'s seconds, if it has none.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.flights: dict[int, Flight] = {}
        self.leaving: dict[int, Flight] = {}
        self.queries = 0  # calls in both dicts that are `beside`
        self.background = 0  # calls in both dicts that are a batch's
        self.heard_at = 0.0
        self.suspect = False
        self.silences = 0
        self.idle_since_s = time.monotonic()
        self._emptied: asyncio.Event | None = None  # of a worker that retires: set when no client waits for it

    @property
    def taken(self) -> int:
        """How many calls occupy the worker, including those in `leaving`."""
        return len(self.flights) + len(self.leaving)

    def has_room(self, query: bool) -> bool:
        """Whether the worker can take one more call, or one more query."""
        if self.suspect or self._emptied is not None:
            return False
        if query and self.worker.queries:
            return self.queries < self.worker.queries
        return self.taken - self.queries < self.worker.capacity

    @property
    def others(self) -> int:
        """Calls that are no batch's and no queries, those in `leaving` included."""
        return self.taken - self.queries - self.background

    def has_room_behind(self, share: float) -> bool:
        """Whether the worker can take one more call of a batch, which together are this share of those that run.

        With all of them, some wait in the worker, so that each that ends has a successor at hand.
        """
        most = self.worker.capacity if share >= 1 else max(1, int(self.worker.at_once * share))
        return self.has_room(False) and self.background < most

    def retire(self) -> asyncio.Event:
        """Make no more room; the event is set once every call whose client waits has ended."""
        self._emptied = self._emptied or asyncio.Event()
        self._tell_if_empty()
        return self._emptied

    def enter(self, flight: Flight) -> None:
        """Record that the worker has a call."""
        self.flights[flight.id] = flight
        flight.worker = self
        flight.beside = flight.query and self.worker.queries > 0
        self.queries += flight.beside
        self.background += flight.background

    def abandon(self, flight: Flight) -> None:
        """Record that a call was cancelled; it still occupies the worker."""
        self.leaving[flight.id] = self.flights.pop(flight.id)
        self._tell_if_empty()

    def leave(self, flight: Flight) -> None:
        """Record that a call no longer occupies the worker."""
        if self.flights.pop(flight.id, None) is None:
            del self.leaving[flight.id]
        self.queries -= flight.beside
        self.background -= flight.background
        if not self.taken:
            self.idle_since_s = time.monotonic()
        self._tell_if_empty()

    def _tell_if_empty(self) -> None:
        if self._emptied is not None and not self.flights:
            self._emptied.set()


_ids = itertools.count(1)


def next_id() -> int:
    """An id for a Call: unique in this front end."""
    return next(_ids)
