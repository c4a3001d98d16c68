"""The workers of a pool: which of them gets a new call, and what they have to do.

Runs in the front end's event loop; knows neither HTTP nor processes.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..routing.router import Outcome, Router
from .flights import Flight, Worker, WorkerSlots


class PoolWorkers:
    """The workers that are ready, with their slots.

    Args:
        router: chooses among them.

    Attributes:
        by_name: their slots. Added to and removed from by `add` and `remove` only.
    """

    def __init__(self, router: Router) -> None:
        self.by_name: dict[str, WorkerSlots] = {}
        self._router = router
        self._several = False  # whether there has been more than one worker

    def __iter__(self) -> Iterator[WorkerSlots]:
        return iter(self.by_name.values())

    def add(self, worker: Worker) -> WorkerSlots:
        """Add a worker, all of whose slots are free."""
        slots = self.by_name[worker.name] = WorkerSlots(worker)
        self._several = self._several or len(self.by_name) > 1
        return slots

    def remove(self, worker: Worker) -> WorkerSlots | None:
        """Remove a worker; returns its slots, with its calls; None: it is not here."""
        slots = self.by_name.pop(worker.name, None)
        if slots is not None:
            self._router.forget(worker.name)
        return slots

    # ------------------------------------------------------------------------------------ choosing

    @property
    def reads_trails(self) -> bool:
        """Whether a call's trail makes a difference: there are, or were, several workers to choose from."""
        return self._several and self._router.reads_trails

    @property
    def shares_prefixes(self) -> bool:
        """Whether an engine keeps what it has computed of a prompt for others that begin like it."""
        return any(slots.shares_prefixes for slots in self)

    def choose(self, flight: Flight) -> WorkerSlots | None:
        """The worker that gets a call that has not waited; None: none has room for it."""
        query, tenant = flight.query, flight.precedence.tenant
        return self._router.choose(flight.trail, [slots for slots in self if slots.has_room(query, tenant)])

    def sent(self, flight: Flight, slots: WorkerSlots) -> Outcome | None:
        """Take note that a worker gets a call; what became of its trail, if that made a difference."""
        return self._router.sent(flight.trail, slots)

    # ------------------------------------------------------------------------------------ what they have to do

    @property
    def capacity(self) -> int:
        """Calls that they take at once; those that do not respond take none."""
        return sum(slots.worker.info.capacity for slots in self if not slots.held)

    @property
    def in_flight(self) -> int:
        """Calls that occupy a worker, including cancelled ones."""
        return sum(slots.taken for slots in self)

    @property
    def background(self) -> int:
        """Calls of batches among these."""
        return sum(slots.background for slots in self)

    @property
    def have_interactive(self) -> bool:
        """Whether a worker has an interactive call (of no batch, and no query)."""
        return any(slots.others for slots in self)

    @property
    def clients(self) -> int:
        """Calls whose clients wait for an answer."""
        return sum(len(slots.flights) for slots in self)

    def idle_since(self, worker: Worker) -> float | None:
        """Since when a worker has had no call, in `time.monotonic`'s seconds; None if it has one, or is not here."""
        slots = self.by_name.get(worker.name)
        return None if slots is None or slots.taken else slots.idle_since_s

    def crowded_since(self, worker: Worker) -> float | None:
        """Since when calls wait in a worker for its engine, in `time.monotonic`'s seconds; None if none does."""
        slots = self.by_name.get(worker.name)
        return None if slots is None else slots.crowded_since_s
