"""Admission and dispatch for one model: which calls are admitted, which worker gets them, and how they end.

Runs in the front end's event loop; knows neither HTTP nor processes. A call takes a worker's free place at once,
waits in the queue when there is none, and is refused at once when the queue is full. Every admitted call ends exactly
once: with its last chunk, with an error, or because its client left.

A batch's calls wait elsewhere, for as long as it takes: they get places that no other call waits for, a share of them
only, which is a smaller one while other calls come, and cost no other call its place in the queue.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from ...core.errors import (
    OverloadedError,
    PredictTimeoutError,
    ServingError,
    TooLargeError,
    UnavailableError,
    WorkerDiedError,
)
from ...ipc.protocol import AnyMessage, Break, Call, Cancel, Chunk, EngineMetrics, Report, Start, Taken, Trace
from ..metrics import ModelMetrics
from .batch_queue import BatchQueue
from .flights import Client, Flight, Place, Worker

#: How long a worker gets no calls after one has timed out: within this time it ends if its handler does not return.
SUSPICION_S: Final = 2.0
#: Calls that time out in a row, while their worker sends nothing at all, before it is taken for frozen.
MAX_SILENCES: Final = 2


class Pool:
    """The calls of one model and the workers that answer them.

    Attributes:
        refusal: why calls are refused now; None: they are admitted, and wait if no worker is ready.
    """

    def __init__(
        self,
        name: str,
        queue_size: int,
        predict_timeout_s: float,
        metrics: ModelMetrics,
        on_wait: Callable[[], None] = lambda: None,
        batch_share: float = 1.0,
        batch_busy_share: float = 1.0,
    ) -> None:
        """A pool without workers.

        Args:
            on_wait: called when a call has begun to wait.
            batch_share: the part of the calls that run at once in a worker that batches get, at least one of them.
            batch_busy_share: that part while other calls are here, or were a short time ago.
        """
        self.refusal: str | None = f"model {name!r} is loading"
        self._name = name
        self._queue_size = queue_size
        self._predict_timeout_s = predict_timeout_s
        self._metrics = metrics
        self._on_wait = on_wait
        # Queries have a queue of their own: they are quick to answer, and do not wait for generation.
        self._queues: dict[bool, OrderedDict[int, Flight]] = {True: OrderedDict(), False: OrderedDict()}
        self._behind = BatchQueue(batch_share, batch_busy_share, self._fill_when_quiet)
        self._places: dict[str, Place] = {}
        self._counted = (0, 0, 0)  # as added to the gauges: `queued`, `in_flight`, and of these those of batches
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self._idle.set()

    # ------------------------------------------------------------------------------------ calls

    def submit(self, call: Call, client: Client, *, query: bool = False) -> Flight:
        """Admit a call. From here on `client` is told of its end, unless `cancel` comes first.

        Args:
            query: whether the call generates nothing, and need not wait for calls that do.

        Raises:
            UnavailableError: the model is loading or has failed.
            OverloadedError: every worker is busy and the queue is full.
        """
        if self.refusal is not None:
            raise UnavailableError(self.refusal)
        now = self._loop.time()
        flight = Flight(call, client, now, query)
        if not query:
            self._behind.others_were_here()
        place = self._free_place(query)
        if place is not None:
            self._dispatch(flight, place)
        elif len(self._queues[query]) < self._queue_size + self._taken_by_batches:
            self._queues[query][flight.id] = flight
            self._on_wait()
        else:
            raise OverloadedError(
                f"model {self._name!r}: {self._queue_size} requests are waiting already, try again later"
            )
        self._count()
        return flight

    def submit_behind(self, call: Call, client: Client) -> Flight:
        """Have a batch's call wait until there is a place that no other call wants. See `submit` for its end.

        Raises:
            UnavailableError: the model is loading or has failed.
        """
        if self.refusal is not None or self._behind.closed:
            raise UnavailableError(self.refusal or f"model {self._name!r}: its workers end")
        flight = Flight(call, client, self._loop.time(), query=False, background=True)
        self._behind.add(flight)
        for place in sorted(self._places.values(), key=lambda place: place.taken):
            self._fill_behind(place)
        self._count()
        return flight

    def send_batches_away(self) -> None:
        """Give batches no more places, as others take over; their calls that wait end with UnavailableError."""
        self._behind.closed = True
        self._fail(self._behind.take_all(), UnavailableError(f"model {self._name!r}: its workers end"), "shutdown")

    def cancel(self, flight: Flight, reason: str) -> None:
        """Cancel a call whose client no longer wants the answer; `reason` is "disconnect" or "slow_reader"."""
        waited = self._queues[flight.query].pop(flight.id, None) is not None or self._behind.remove(flight)
        if not waited:
            place = flight.worker
            if place is None or place.flights.get(flight.id) is not flight:
                return  # it has ended
            place.worker.send(Cancel(flight.id, "disconnect"))
            place.abandon(flight)
        self._metrics.aborted(reason)
        self._count()

    def taken(self, flight: Flight, size: int) -> None:
        """Tell the worker that the client has taken `size` more bytes of its answer."""
        if flight.worker is not None:
            flight.heard_at = self._loop.time()
            flight.worker.worker.send(Taken(flight.id, size))

    def fail_all(self, error: ServingError, reason: str) -> None:
        """End every call, waiting or running, with `error`."""
        flights = self._behind.take_all()
        for queue in self._queues.values():
            flights += queue.values()
            queue.clear()
        for place in self._places.values():
            flights += self._take_back(place)
        self._fail(flights, error, reason)

    @property
    def queued(self) -> int:
        """Calls that wait for a worker, those of batches not counted."""
        return sum(len(queue) for queue in self._queues.values())

    @property
    def waiting(self) -> tuple[int, float | None]:
        """Calls that wait for a worker, queries not counted, and since when, in `time.monotonic`'s seconds."""
        queue = self._queues[False]
        first = next(iter(queue.values()), None)
        return len(queue), None if first is None else first.accepted_s

    @property
    def in_flight(self) -> int:
        """Calls that occupy a worker, including cancelled ones."""
        return sum(place.taken for place in self._places.values())

    @property
    def capacity(self) -> int:
        """Calls that the workers that are ready take at once."""
        return sum(place.worker.capacity for place in self._places.values())

    @property
    def busy(self) -> int:
        """Calls whose clients wait for an answer."""
        return self.queued + sum(len(place.flights) for place in self._places.values())

    async def wait_idle(self) -> None:
        """Wait until no call is left."""
        await self._idle.wait()

    # ------------------------------------------------------------------------------------ workers

    def add(self, worker: Worker) -> None:
        """Add a worker that is ready, and give it calls that wait."""
        self.refusal = None
        self._metrics.worker_came(worker.name, worker.engine)
        place = self._places[worker.name] = Place(worker)
        self._fill(place)
        self._count()

    def idle_since(self, worker: Worker) -> float | None:
        """Since when a worker has had no call, in `time.monotonic`'s seconds; None if it has one, or is not here."""
        place = self._places.get(worker.name)
        return None if place is None or place.taken else place.idle_since_s

    async def retire(self, worker: Worker, timeout_s: float | None) -> None:
        """Give a worker no more calls, and wait until those that it has are answered; it is removed by its owner.

        After `timeout_s` seconds they fail with UnavailableError; None: they get the time that they take.
        """
        place = self._places.get(worker.name)
        if place is None:
            return
        emptied = place.retire()
        try:
            async with asyncio.timeout(timeout_s):
                await emptied.wait()
        except TimeoutError:
            left = self._take_back(place)
            self._fail(left, UnavailableError(f"model {self._name!r}: the worker of this request ends"), "shutdown")

    def remove(self, worker: Worker, cause: str) -> None:
        """Remove a worker, if it is here: its calls end with WorkerDiedError; calls in the queue go on waiting."""
        place = self._places.pop(worker.name, None)
        if place is None:
            return
        self._metrics.worker_went(worker.name)
        flights = list(place.flights.values())
        for flight in (*flights, *place.leaving.values()):
            self._release(flight, refill=False)
        self._fail(flights, WorkerDiedError(f"the worker that was answering this request {cause}"), "worker_died")

    def receive(self, worker: Worker, messages: Sequence[AnyMessage]) -> None:
        """Handle what a ready worker sent. All pieces of one answer among `messages` are written together."""
        place = self._places.get(worker.name)
        if place is None:
            return
        now = self._loop.time()
        place.heard_at, place.silences = now, 0
        touched: dict[int, Flight] = {}
        others: list[AnyMessage] = []
        flights = place.flights
        for message in messages:
            if isinstance(message, (Chunk, Start, Break)):
                flight = flights.get(message.id)
                if flight is None:  # sent before the cancellation arrived, or in answer to it
                    gone = place.leaving.get(message.id)
                    if gone is not None and (isinstance(message, Break) or getattr(message, "last", False)):
                        self._release(gone)
                        self._count()
                    continue
                touched[message.id] = flight
                if isinstance(message, Chunk):
                    if not message.keep_alive:
                        flight.heard_at = now
                    flight.pieces.append(message.data)
                    flight.last = message.last
                elif isinstance(message, Break):
                    flight.last = flight.broken = True
                else:
                    flight.client.start(message.status, message.headers)
            elif not self._noted(place, message):
                others.append(message)
        self._pass_on(touched.values(), worker)
        for message in others:
            worker.said(message)
        if place.suspect:
            self._trust(place)

    # ------------------------------------------------------------------------------------ inside

    def _noted(self, place: Place, message: AnyMessage) -> bool:
        """Whether the message is for metrics or a trace, which have it now."""
        if isinstance(message, (Report, EngineMetrics)):
            self._metrics.apply(place.worker.name, message)
        elif isinstance(message, Trace):
            if (flight := place.flights.get(message.id)) is not None:
                flight.client.noted(message)
        else:
            return False
        return True

    def _pass_on(self, flights: Collection[Flight], worker: Worker) -> None:
        """Write what has arrived for these calls. First send the worker the next calls: it works on them meanwhile."""
        ended = [flight for flight in flights if flight.last]
        for flight in ended:
            self._release(flight)
        if ended:
            self._count()
            worker.flush()
        for flight in flights:
            pieces, flight.pieces = flight.pieces, []
            if pieces or not flight.broken:
                data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                flight.client.body(data, flight.last and not flight.broken)
            if flight.broken:
                flight.client.break_off()

    def _take_back(self, place: Place) -> list[Flight]:
        """The calls that a worker has, which is told to give them up."""
        flights = list(place.flights.values())
        for flight in flights:
            place.worker.send(Cancel(flight.id, "disconnect"))
            self._release(flight, refill=False)
        return flights

    def _free_place(self, query: bool) -> Place | None:
        """The least busy worker that has room."""
        free = [place for place in self._places.values() if place.has_room(query)]
        return min(free, key=lambda place: (place.taken, place.worker.spare), default=None)

    @property
    def _taken_by_batches(self) -> int:
        """Places that other calls would have if there were no batches."""
        return sum(place.background for place in self._places.values())

    def _fill(self, place: Place) -> None:
        for query, queue in self._queues.items():
            while queue and place.has_room(query):
                self._dispatch(queue.popitem(last=False)[1], place)
        self._fill_behind(place)

    def _fill_behind(self, place: Place) -> None:
        if not self._behind:
            return
        share = self._behind.share(bool(self._queues[False]) or any(one.others for one in self._places.values()))
        while self._behind and place.has_room_behind(share):
            self._dispatch(self._behind.next(), place)

    def _fill_when_quiet(self) -> None:
        for place in self._places.values():
            self._fill_behind(place)
        self._count()

    def _dispatch(self, flight: Flight, place: Place) -> None:
        assert flight.call is not None
        now = self._loop.time()
        flight.dispatched_at = flight.heard_at = now
        # A batch's waiting is as long as the batch: in a model's times it would hide how long others wait.
        waited_s = 0.0 if flight.background else time.monotonic() - flight.accepted_s
        call, flight.call = msgspec.structs.replace(flight.call, waited_s=waited_s), None
        try:
            place.worker.send(call)
        except ValueError as exc:
            flight.client.fail(TooLargeError(f"this request can't be passed on to its model: {exc}"))
            return
        flight.client.sent()
        place.enter(flight)
        flight.timer = self._loop.call_at(now + self._predict_timeout_s, self._check_time, flight)
        if not flight.query and not flight.background:
            self._metrics.queue_seconds.observe(waited_s)

    def _release(self, flight: Flight, *, refill: bool = True) -> None:
        """Free a call's place, and give it to the next call in the queue."""
        place = flight.worker
        assert place is not None
        place.leave(flight)
        if not (flight.background or flight.query):
            self._behind.others_were_here()
        if flight.timer is not None:
            flight.timer.cancel()
        if refill:
            self._fill(place)

    def _check_time(self, flight: Flight) -> None:
        """Time a call out, or set its timer again if something was heard of it: no timer is touched per chunk."""
        place = flight.worker
        assert place is not None
        due_at = flight.heard_at + self._predict_timeout_s
        if due_at > self._loop.time():
            flight.timer = self._loop.call_at(due_at, self._check_time, flight)
            return
        place.worker.send(Cancel(flight.id, "timeout"))
        place.suspect = True
        place.silences = place.silences + 1 if place.heard_at <= flight.dispatched_at else 0
        awaited = flight.id in place.flights
        self._release(flight)
        error = PredictTimeoutError(
            f"no answer within {self._predict_timeout_s:g} s (option.predict_timeout of model {self._name!r})"
        )
        self._fail([flight] if awaited else [], error, "timeout")
        if place.silences >= MAX_SILENCES:
            place.worker.hang_up(f"did not answer within {self._predict_timeout_s:g} s (option.predict_timeout)")
        else:
            self._loop.call_later(SUSPICION_S, self._trust, place)

    def _trust(self, place: Place) -> None:
        if place.suspect and self._places.get(place.worker.name) is place:
            place.suspect = False
            self._fill(place)
            self._count()

    def _fail(self, flights: Sequence[Flight], error: ServingError, reason: str) -> None:
        for flight in flights:
            self._metrics.aborted(reason)
            flight.client.fail(error)
        self._count()

    def _count(self) -> None:
        # Only differences are added: a model that is loaded again while its last requests finish has two pools.
        before, self._counted = self._counted, (self.queued, self.in_flight, self._taken_by_batches)
        self._metrics.queued.inc(self._counted[0] - before[0])
        self._metrics.in_flight.inc(self._counted[1] - before[1])
        self._metrics.batch_in_flight.inc(self._counted[2] - before[2])
        if self.busy:
            self._idle.clear()
        else:
            self._idle.set()
