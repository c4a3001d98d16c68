"""A model's calls of batches that wait for a slot, and the share of slots that batches get.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from .flights import Flight

#: How long after the last interactive call batches take more slots again: a client's next call often comes soon.
QUIET_S: Final = 5.0


class BatchQueue:
    """Calls in the order in which they came.

    Attributes:
        closed: whether batches get no more slots, because another instance of the model takes over.
    """

    def __init__(self, share: float, busy_share: float, on_quiet: Callable[[], None]) -> None:
        """An empty queue.

        Args:
            share: the part of the calls that run at once in a worker that batches get.
            busy_share: that part while other calls are here, or were within `QUIET_S`.
            on_quiet: called when calls wait and their share has grown.
        """
        self.closed = False
        self._share = share
        self._busy_share = min(share, busy_share)
        self._on_quiet = on_quiet
        self._waiting: OrderedDict[int, Flight] = OrderedDict()
        self._others_at = -math.inf  # when the last interactive call came or ended, on the loop's clock
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, flight: Flight) -> None:
        """Have a call wait."""
        self._waiting[flight.id] = flight

    def put_back(self, flight: Flight) -> None:
        """Have a call wait again that a worker had, before all others."""
        self._waiting[flight.id] = flight
        self._waiting.move_to_end(flight.id, last=False)

    def remove(self, flight: Flight) -> bool:
        """Remove a call; whether it was here."""
        return self._waiting.pop(flight.id, None) is not None

    def next(self) -> Flight:
        """Take the call that has waited longest."""
        return self._waiting.popitem(last=False)[1]

    def take_all(self) -> list[Flight]:
        """Take every call."""
        taken = list(self._waiting.values())
        self._waiting.clear()
        return taken

    def note_interactive(self) -> None:
        """An interactive call (of no batch) has come or ended."""
        self._others_at = self._loop.time()

    def share(self, others: bool) -> float:
        """The part of the calls that run at once in a worker that batches get now.

        Args:
            others: whether an interactive call waits or runs.
        """
        quiet_at = self._others_at + QUIET_S
        if not others and self._loop.time() >= quiet_at:
            return self._share
        if not others and self._timer is None:
            self._timer = self._loop.call_at(quiet_at, self._quiet)
        return self._busy_share

    def _quiet(self) -> None:
        self._timer = None
        if self._waiting:
            self._on_quiet()
