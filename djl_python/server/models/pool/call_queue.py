"""A model's calls that wait for a worker: whose turn it is, and which would wait too long.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from ....core.errors import OverloadedError, ServingError
from ....core.turns.fair_queue import FairQueue
from .flights import Flight, WorkerSlots
from .start_rate import StartRate


class CallQueue:
    """Calls in the order in which their tenants have turns, and a count of each tenant's calls that workers have.

    Args:
        name: the model's.
        size: how many calls may wait.
        on_give_up: called with a call that has waited for as long as its client would have it wait, and its error.
    """

    def __init__(self, name: str, size: int, on_give_up: Callable[[Flight, ServingError], None]) -> None:
        self._name = name
        self._size = size
        self._on_give_up = on_give_up
        self._queue = FairQueue[Flight]()
        self._starts = StartRate()
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def waiting_since_s(self) -> float | None:
        """Since when the oldest call has waited, in `time.monotonic`'s seconds; None: none waits."""
        return min((flight.accepted_s for flight in self._queue), default=None)

    def add(self, flight: Flight, further: int, within_s: float | None) -> None:
        """Have a call wait.

        Args:
            further: how many calls may wait beyond the queue's size.
            within_s: how long its client would have it wait; None: as long as it takes.

        Raises:
            OverloadedError: too many wait already, or it would wait too long.
        """
        if len(self._queue) >= self._size + further:
            raise OverloadedError(f"model {self._name!r}: {self._size} requests are waiting already, try again later")
        if within_s is not None:
            self._check_wait(flight, within_s)
            flight.timer = self._loop.call_later(within_s, self._give_up, flight)
        self._queue.add(flight)

    def put_back(self, flight: Flight) -> None:
        """Have a call wait again that a worker had, before its tenant's others."""
        self._queue.give_back(flight)

    def enter(self, flight: Flight) -> None:
        """A new call goes to a worker without having waited."""
        self._queue.seat(flight)

    def take_next(self, slots: WorkerSlots, query: bool) -> Flight | None:
        """Take the call whose turn it is, of those that a worker has room for, which is to get it."""
        if not self._queue or not slots.has_room(query):
            return None
        firsts = self._queue.firsts
        flight = next((each for each in firsts if slots.has_room(query, each.precedence.tenant)), None)
        if flight is not None:
            self._queue.take(flight)
            self._stop_timer(flight)
            self._starts.note(self._loop.time(), waiting=len(self._queue))
        return flight

    def remove(self, flight: Flight) -> bool:
        """Remove a waiting call; whether it was here."""
        if flight not in self._queue:
            return False
        self._queue.remove(flight)
        self._stop_timer(flight)
        return True

    def take_all(self) -> list[Flight]:
        """Remove every waiting call."""
        flights = list(self._queue)
        for flight in flights:
            self.remove(flight)
        return flights

    def leave(self, flight: Flight) -> None:
        """A call that a worker had has ended."""
        self._queue.leave(flight)

    def _check_wait(self, flight: Flight, within_s: float) -> None:
        ahead = self._queue.ahead_of(flight)
        if (wait_s := self._starts.wait_s(ahead)) is not None and wait_s > within_s:
            error = OverloadedError(
                f"model {self._name!r}: {ahead} requests go before this one, which would begin in {wait_s:.1f} s, and "
                f"has to within {within_s:g} s"
            )
            error.retry_after_s = max(1, math.ceil(wait_s - within_s))
            raise error

    def _give_up(self, flight: Flight) -> None:
        self._queue.remove(flight)
        waited_s = time.monotonic() - flight.accepted_s
        error = OverloadedError(f"model {self._name!r}: this request has not begun within {waited_s:.1f} s")
        error.retry_after_s = max(1, math.ceil(self._starts.wait_s(len(self._queue)) or 1))
        self._on_give_up(flight, error)

    def _stop_timer(self, flight: Flight) -> None:
        if flight.timer is not None:
            flight.timer.cancel()
            flight.timer = None
