"""Gives calls to workers: a new call at once where a worker has room for it, waiting ones in their turn.

Runs in the front end's event loop; knows neither HTTP nor processes.

Calls of batches wait in a queue of their own, without a time limit. They get slots that no interactive call waits for,
and only a share of them, which is smaller while interactive calls come. They take no place in the interactive queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec

from ....core.errors import ServingError, TooLargeError
from ...metrics.model_metrics import ModelMetrics
from .batch_queue import BatchQueue
from .call_queue import CallQueue
from .flights import Flight, WorkerSlots
from .workers import PoolWorkers

#: A call with a longer body does not go to another worker when its own is lost: the front end does not keep the body.
RERUN_BODY_BYTES: Final = 1 << 20


class Assigner:
    """The calls of a pool that wait, and the free slots of its workers.

    Args:
        batch_share: the part of the calls that run at once in a worker that batches get, at least one of them.
        batch_busy_share: that part while other calls are here, or were a short time ago.
        reruns: whether calls are kept, to be sent to another worker if their own is lost.
        on_assigned: called with a call that a worker has got.
        on_give_up: called with a call that has waited for as long as its client would have it wait, and its error.
        on_quiet: called when batches have got more slots, since no interactive call has come for a while.
    """

    def __init__(
        self,
        name: str,
        queue_size: int,
        workers: PoolWorkers,
        metrics: ModelMetrics,
        batch_share: float,
        batch_busy_share: float,
        *,
        reruns: bool,
        on_assigned: Callable[[Flight], None],
        on_give_up: Callable[[Flight, ServingError], None],
        on_quiet: Callable[[], None],
    ) -> None:
        self._workers = workers
        self._metrics = metrics
        self._reruns = reruns
        self._on_assigned = on_assigned
        self._on_quiet = on_quiet
        # Queries have a queue of their own: they are quick to answer, and do not wait for generation.
        self._queues = {query: CallQueue(name, queue_size, on_give_up) for query in (True, False)}
        self._batches = BatchQueue(batch_share, batch_busy_share, self._fill_when_quiet)
        self._loop = asyncio.get_running_loop()

    # ------------------------------------------------------------------------------------ calls

    def submit(self, flight: Flight, begins_within_s: float | None) -> bool:
        """Give a call to a worker, or have it wait where none has room; whether it need not wait.

        Args:
            begins_within_s: how long its client would have it wait; None: as long as it takes.

        Raises:
            OverloadedError: the queue is full, or would take too long.
        """
        if not flight.query:
            self._batches.note_interactive()
        queue = self._queues[flight.query]
        slots = self._workers.choose(flight)
        if slots is None:
            queue.add(flight, self._workers.background, begins_within_s)
            return False
        queue.enter(flight)
        self._assign(flight, slots)
        return True

    def submit_batch(self, flight: Flight) -> None:
        """Have a batch's call wait until there is a slot that no other call wants."""
        self._batches.add(flight)
        for slots in sorted(self._workers, key=lambda slots: slots.taken):
            self._fill_with_batches(slots)

    def put_back(self, flight: Flight) -> None:
        """Have a call whose worker is lost wait again, in front."""
        assert flight.worker is not None
        flight.worker.release(flight)
        flight.worker = None
        if flight.timer is not None:
            flight.timer.cancel()
            flight.timer = None
        flight.call, flight.kept, flight.rerun, flight.had = flight.kept, None, True, (0, 0)
        if flight.background:
            self._batches.put_back(flight)
        else:
            self._queues[flight.query].put_back(flight)

    def remove(self, flight: Flight) -> bool:
        """Remove a call that waits; whether it did."""
        return self._queues[flight.query].remove(flight) or self._batches.remove(flight)

    def take_all(self) -> list[Flight]:
        """Remove every call that waits."""
        flights = self._batches.take_all()
        for queue in self._queues.values():
            flights += queue.take_all()
        return flights

    def left(self, flight: Flight) -> None:
        """A call that a worker had has ended."""
        if not flight.background:
            self._queues[flight.query].leave(flight)
        if not (flight.background or flight.query):
            self._batches.note_interactive()

    @property
    def queued(self) -> int:
        """Calls that wait, those of batches not counted."""
        return sum(len(queue) for queue in self._queues.values())

    @property
    def queued_batches(self) -> int:
        """Calls of batches that wait."""
        return len(self._batches)

    @property
    def waiting(self) -> tuple[int, float | None]:
        """Calls that wait, queries not counted, and since when, in `time.monotonic`'s seconds."""
        queue = self._queues[False]
        return len(queue), queue.waiting_since_s

    @property
    def batches_closed(self) -> bool:
        """Whether batches get no more slots."""
        return self._batches.closed

    def close_batches(self) -> list[Flight]:
        """Give batches no more slots; returns their calls that waited."""
        self._batches.closed = True
        return self._batches.take_all()

    # ------------------------------------------------------------------------------------ slots

    def fill(self, slots: WorkerSlots) -> None:
        """Give a worker the calls that wait for it, as far as it has room."""
        for query, queue in self._queues.items():
            while (flight := queue.take_next(slots, query)) is not None:
                self._assign(flight, slots)
        self._fill_with_batches(slots)

    def _fill_with_batches(self, slots: WorkerSlots) -> None:
        if not self._batches:
            return
        share = self._batches.share(bool(self._queues[False]) or self._workers.have_interactive)
        while self._batches and slots.has_batch_room(share):
            self._assign(self._batches.next(), slots)

    def _fill_when_quiet(self) -> None:
        for slots in self._workers:
            self._fill_with_batches(slots)
        self._on_quiet()

    def _assign(self, flight: Flight, slots: WorkerSlots) -> None:
        assert flight.call is not None
        # A batch's waiting is as long as the batch: in a model's times it would hide how long others wait.
        waited_s = 0.0 if flight.background else time.monotonic() - flight.accepted_s
        # `waited_s` of the call itself is how long its model took to load.
        if self._reruns and not flight.rerun and len(flight.call.body) <= RERUN_BODY_BYTES:
            flight.kept = flight.call
        call, flight.call = msgspec.structs.replace(flight.call, waited_s=flight.call.waited_s + waited_s), None
        flight.heard_at = self._loop.time()
        try:
            slots.worker.send(call)
        except ValueError as exc:
            if not flight.background:
                self._queues[flight.query].leave(flight)
            flight.end()
            flight.client.fail(TooLargeError(f"this request can't be passed on to its model: {exc}"))
            return
        if not flight.rerun:
            flight.client.sent()
        if (outcome := self._workers.sent(flight, slots)) is not None:
            self._metrics.routed(outcome)
        slots.enter(flight)
        self._on_assigned(flight)
        if not flight.query and not flight.background:
            self._metrics.queue_seconds.observe(waited_s)
