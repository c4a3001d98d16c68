"""Calls in progress, and the workers that have them, as the pool tracks them.

Runs in the front end's event loop; knows neither HTTP nor processes.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from ....core.errors import ServingError
from ....ipc.protocol import AnyMessage, Call, Trace, UsageReport, WorkerInfo
from ..routing.trail import NO_TRAIL, Trail

#: One in so many of a worker's places for waiting calls is for tenants that have no call there.
_SHARE_OF_NEWCOMERS: Final = 8


class Client(Protocol):
    """The client of a call, which receives its answer. No method raises."""

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
        """Events for the call's span, before the answer's end; only for a traced call."""
        ...

    def used(self, usage: UsageReport) -> None:
        """How many tokens the call has had; only for a call that is counted, and also for one that was cancelled."""
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
    info: WorkerInfo  # what it says of itself
    spare: bool  # whether it may go again when there is less to do: of two that have as much, it is given no more

    @property
    def node(self) -> str:
        """The machine that it runs on; "": this one."""
        ...

    def send(self, message: AnyMessage) -> None:
        """Queue a message for the worker.

        Raises:
            ValueError: the message is too long to be sent.
        """
        ...

    def flush(self) -> None:
        """Send the queued messages now."""
        ...

    def handle_message(self, message: AnyMessage) -> None:
        """Handle a message from the worker that is about no call."""
        ...


class Flight:
    """One call, from its admission to its end.

    Attributes:
        query: whether the call is a query, which generates nothing.
        background: whether a batch sent it: other calls go first, and batches get only a share of the slots.
        in_query_slot: whether it occupies one of the worker's slots for queries, and none of those for calls.
        heard_at: when its answer last progressed, in the loop's time.
        precedence: whose it is and how urgent.
        kept: the call, to be sent to another worker if its own is lost; None: it will not be.
        rerun: whether that has happened.
        had: how many tokens it has had in its worker, of prompts and generated ones.
        counted: how many of each its client has been told of; more than it has had, where its first worker was lost.
        trail: what its worker is chosen by.
    """

    __slots__ = (
        "_on_end",
        "accepted_s",
        "background",
        "broken",
        "call",
        "client",
        "counted",
        "had",
        "heard_at",
        "id",
        "in_query_slot",
        "kept",
        "last",
        "pieces",
        "precedence",
        "query",
        "rerun",
        "timer",
        "trail",
        "worker",
    )

    def __init__(
        self,
        call: Call,
        client: Client,
        now: float,
        query: bool,
        *,
        background: bool = False,
        trail: Trail = NO_TRAIL,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self.id = call.id
        self._on_end = on_end
        self.precedence = call.precedence
        self.query = query
        self.background = background
        self.trail = trail
        self.in_query_slot = False
        self.call: Call | None = call  # dropped once sent: the body may be large
        self.kept: Call | None = None
        self.rerun = False
        self.had = self.counted = (0, 0)
        self.client = client
        self.accepted_s = time.monotonic()  # an event loop's own clock may stand still within an iteration
        self.heard_at = now
        self.worker: WorkerSlots | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.pieces: list[bytes] = []
        self.last = False
        self.broken = False

    def uncounted(self, report: UsageReport) -> UsageReport:
        """Add what a worker reports; returns how much of it its client has not been told of, when it ran before."""
        self.had = prompt, generated = self.had[0] + report.prompt_tokens, self.had[1] + report.generated_tokens
        before = self.counted
        self.counted = max(prompt, before[0]), max(generated, before[1])
        return UsageReport(self.id, self.counted[0] - before[0], self.counted[1] - before[1])

    def end(self) -> None:
        """It neither waits nor occupies a worker any more: tell who asked to be told, once."""
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()


class WorkerSlots:
    """The slots of a worker, and the calls that occupy them. Is a `routing.router.Candidate`.

    Attributes:
        abandoned: calls whose clients have gone, until the worker has released them: a running function can't be
            interrupted.
        suspect: whether a call has timed out and the worker has sent nothing since: it gets no calls until it does, or
            for some time.
        held: no new calls, because the worker does not respond.
        idle_since_s: since when it has no call, in `time.monotonic`'s seconds, if it has none.
        crowded_since_s: since when it has reported calls that wait in it, on the same clock; None: it has none.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.flights: dict[int, Flight] = {}
        self.abandoned: dict[int, Flight] = {}
        self.queries = 0  # calls in both dicts that are `in_query_slot`
        self.background = 0  # calls in both dicts that are a batch's
        self.tenants = Counter[str]()  # calls in both dicts that are neither, by tenant
        self.suspect = False
        self.held = False
        self.idle_since_s = time.monotonic()
        self.crowded_since_s: float | None = None
        self._emptied: asyncio.Event | None = None  # of a worker that retires: set when no client waits for it

    @property
    def name(self) -> str:
        """The worker's."""
        return self.worker.name

    @property
    def at_once(self) -> int:
        """How many calls run in the worker at once."""
        return self.worker.info.at_once

    @property
    def spare(self) -> bool:
        """Whether the worker may go again when there is less to do."""
        return self.worker.spare

    @property
    def shares_prefixes(self) -> bool:
        """Whether its engine keeps what it has computed of a prompt for others that begin like it."""
        engine = self.worker.info.engine
        return engine is not None and engine.shares_prefixes

    @property
    def taken(self) -> int:
        """How many calls occupy the worker, including those in `abandoned`."""
        return len(self.flights) + len(self.abandoned)

    def has_room(self, query: bool, tenant: str | None = None) -> bool:
        """Whether the worker can take one more call, or one more query.

        Of the calls that would only wait in the worker, an eighth is for tenants that have none there: another
        tenant's flood does not keep them outside.

        Args:
            tenant: whose call it is; None: any tenant's.
        """
        if self.suspect or self.held or self._emptied is not None:
            return False
        if query and self.worker.info.queries:
            return self.queries < self.worker.info.queries
        info = self.worker.info
        left = info.capacity - (self.taken - self.queries)
        if tenant is None or not self.tenants[tenant]:
            return left > 0
        return left > (info.capacity - info.at_once) // _SHARE_OF_NEWCOMERS

    @property
    def others(self) -> int:
        """Interactive calls (of no batch, and no queries), including those in `abandoned`."""
        return self.taken - self.queries - self.background

    def has_batch_room(self, share: float) -> bool:
        """Whether the worker can take one more call of a batch; batches get this share of its running calls.

        With a share of 1, some calls wait in the worker, so that each one that ends has a successor at hand.
        """
        most = self.worker.info.capacity if share >= 1 else max(1, int(self.worker.info.at_once * share))
        return self.has_room(False) and self.background < most

    def crowd(self, waiting: float) -> bool:
        """Take note of how many calls wait in the worker for its engine; whether the first one has begun to."""
        before = self.crowded_since_s
        self.crowded_since_s = (before or time.monotonic()) if waiting else None
        return bool(waiting) and before is None

    def retire(self) -> asyncio.Event:
        """Make no more room; the event is set once every call whose client waits has ended."""
        self._emptied = self._emptied or asyncio.Event()
        self._set_if_empty()
        return self._emptied

    def enter(self, flight: Flight) -> None:
        """Record that the worker has a call."""
        self.flights[flight.id] = flight
        flight.worker = self
        flight.in_query_slot = flight.query and self.worker.info.queries > 0
        self.queries += flight.in_query_slot
        self.background += flight.background
        if not (flight.in_query_slot or flight.background):
            self.tenants[flight.precedence.tenant] += 1

    def abandon(self, flight: Flight) -> None:
        """Record that a call was cancelled; it still occupies the worker."""
        self.abandoned[flight.id] = self.flights.pop(flight.id)
        self._set_if_empty()

    def release(self, flight: Flight) -> None:
        """Record that a call no longer occupies the worker."""
        if self.flights.pop(flight.id, None) is None:
            del self.abandoned[flight.id]
        self.queries -= flight.in_query_slot
        self.background -= flight.background
        if not (flight.in_query_slot or flight.background):
            self.tenants[flight.precedence.tenant] -= 1
            self.tenants += Counter()  # forgets those at 0
        if not self.taken:
            self.idle_since_s = time.monotonic()
        self._set_if_empty()

    def _set_if_empty(self) -> None:
        if self._emptied is not None and not self.flights:
            self._emptied.set()


_ids = itertools.count(1)


def next_id() -> int:
    """An id for a Call: unique in this front end."""
    return next(_ids)
