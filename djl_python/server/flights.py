"""A call on its way, and the worker that it is with, as the pool keeps them.

Runs in the front end's event loop; knows neither HTTP nor processes.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Protocol

from ..errors import ServingError
from ..protocol import AnyMessage, Call


class Client(Protocol):
    """Where a call came from: told what to write. None of these raises."""

    def sent(self) -> None:
        """The call is with a worker, or on its way there; nothing need be held for it any more."""
        ...

    def start(self, status: int, headers: dict[str, str]) -> None:
        """The answer's status and headers; once, before `body`."""
        ...

    def body(self, data: bytes, last: bool) -> None:
        """Everything that one read from the worker had for this answer, b"" for a start alone; `last` ends it."""
        ...

    def break_off(self) -> None:
        """The answer, which has begun, ends unfinished."""
        ...

    def fail(self, error: ServingError) -> None:
        """There will be no (more) answer."""
        ...


class Worker(Protocol):
    """A loaded worker, as the pool sees it."""

    name: str
    capacity: int  # calls that it takes at once
    queries: int  # queries that it takes besides; 0: they are calls like others

    def send(self, message: AnyMessage) -> None:
        """Queue a message for it.

        Raises:
            ValueError: it is more than can be sent.
        """
        ...

    def flush(self) -> None:
        """Let what was sent leave now."""
        ...

    def said(self, message: AnyMessage) -> None:
        """It sent something that is about no call."""
        ...

    def hang_up(self, reason: str) -> None:
        """It does not answer any more: end it. `Pool.remove` follows."""
        ...


class Flight:
    """One call, from its admission to its end.

    Attributes:
        query: it generates nothing.
        heard_at: when its answer last made progress, in the loop's time.
        beside: it takes no place among the calls of its worker.
    """

    __slots__ = (
        "accepted_s",
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

    def __init__(self, call: Call, client: Client, now: float, query: bool) -> None:
        self.id = call.id
        self.query = query
        self.beside = False
        self.call: Call | None = call  # given up once sent: the body may be large
        self.client = client
        self.accepted_s = time.monotonic()  # an event loop's own clock may stand still for a turn
        self.dispatched_at = self.heard_at = now
        self.worker: Place | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.pieces: list[bytes] = []
        self.last = False
        self.broken = False


class Place:
    """A worker and the calls that are with it.

    Attributes:
        leaving: calls that nobody waits for any more, until the worker says that it has let go of them: a function
            can't be interrupted.
        heard_at: when it last sent anything, in the loop's time.
        suspect: a call has timed out, and nothing came since: no new calls until it speaks or some time has passed.
        silences: how many calls in a row timed out without a word about any.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.flights: dict[int, Flight] = {}
        self.leaving: dict[int, Flight] = {}
        self.queries = 0  # those of both that are beside the others
        self.heard_at = 0.0
        self.suspect = False
        self.silences = 0

    @property
    def taken(self) -> int:
        """How many calls the worker has to do with."""
        return len(self.flights) + len(self.leaving)

    def has_room(self, query: bool) -> bool:
        """Whether it can take one more call, or one more query."""
        if self.suspect:
            return False
        if query and self.worker.queries:
            return self.queries < self.worker.queries
        return self.taken - self.queries < self.worker.capacity

    def enter(self, flight: Flight) -> None:
        """One more call is with it."""
        self.flights[flight.id] = flight
        flight.worker = self
        flight.beside = flight.query and self.worker.queries > 0
        self.queries += flight.beside

    def abandon(self, flight: Flight) -> None:
        """Nobody waits for a call any more: it is about to leave."""
        self.leaving[flight.id] = self.flights.pop(flight.id)

    def leave(self, flight: Flight) -> None:
        """A call is no longer with it."""
        if self.flights.pop(flight.id, None) is None:
            del self.leaving[flight.id]
        self.queries -= flight.beside


_ids = itertools.count(1)


def next_id() -> int:
    """An id for a Call: unique in this front end."""
    return next(_ids)
