"""Admission and dispatch for one model: which calls are admitted, which worker gets them, and how they end.

Runs in the front end's event loop; knows neither HTTP nor processes. A call takes a worker's free place at once,
waits in the queue when there is none, and is refused at once when the queue is full. Every admitted call ends exactly
once: with its last chunk, with an error, or because its client left.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence
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
from ...ipc.protocol import AnyMessage, Break, Call, Cancel, Chunk, Report, Start, Taken
from ..metrics import ModelMetrics
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

    def __init__(self, name: str, queue_size: int, predict_timeout_s: float, metrics: ModelMetrics) -> None:
        self.refusal: str | None = f"model {name!r} is loading"
        self._name = name
        self._queue_size = queue_size
        self._predict_timeout_s = predict_timeout_s
        self._metrics = metrics
        # Queries have a queue of their own: they are quick to answer, and do not wait for generation.
        self._queues: dict[bool, OrderedDict[int, Flight]] = {True: OrderedDict(), False: OrderedDict()}
        self._places: dict[str, Place] = {}
        self._counted = (0, 0)  # `queued` and `in_flight` as added to the gauges
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
        flight = Flight(call, client, self._loop.time(), query)
        place = self._free_place(query)
        if place is not None:
            self._dispatch(flight, place)
        elif len(self._queues[query]) < self._queue_size:
            self._queues[query][flight.id] = flight
        else:
            raise OverloadedError(
                f"model {self._name!r}: {self._queue_size} requests are waiting already, try again later"
            )
        self._count()
        return flight

    def cancel(self, flight: Flight, reason: str) -> None:
        """Cancel a call whose client no longer wants the answer; `reason` is "disconnect" or "slow_reader"."""
        if self._queues[flight.query].pop(flight.id, None) is None:
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
        flights = [flight for queue in self._queues.values() for flight in queue.values()]
        for queue in self._queues.values():
            queue.clear()
        for place in self._places.values():
            flights += self._take_back(place)
        self._fail(flights, error, reason)

    @property
    def queued(self) -> int:
        """Calls that wait for a worker."""
        return sum(len(queue) for queue in self._queues.values())

    @property
    def in_flight(self) -> int:
        """Calls that occupy a worker, including cancelled ones."""
        return sum(place.taken for place in self._places.values())

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

    async def retire(self, worker: Worker, timeout_s: float) -> None:
        """Give a worker no more calls, and wait until those that it has are answered; it is removed by its owner.

        After `timeout_s` seconds they fail with UnavailableError.
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
            elif isinstance(message, Report):
                self._metrics.apply(worker.name, message)
            else:
                others.append(message)
        self._pass_on(touched.values(), worker)
        for message in others:
            worker.said(message)
        if place.suspect:
            self._trust(place)

    # ------------------------------------------------------------------------------------ inside

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
        return min(free, key=lambda place: place.taken, default=None)

    def _fill(self, place: Place) -> None:
        for query, queue in self._queues.items():
            while queue and place.has_room(query):
                self._dispatch(queue.popitem(last=False)[1], place)

    def _dispatch(self, flight: Flight, place: Place) -> None:
        assert flight.call is not None
        now = self._loop.time()
        flight.dispatched_at = flight.heard_at = now
        waited_s = time.monotonic() - flight.accepted_s
        call, flight.call = msgspec.structs.replace(flight.call, waited_s=waited_s), None
        try:
            place.worker.send(call)
        except ValueError as exc:
            flight.client.fail(TooLargeError(f"this request can't be passed on to its model: {exc}"))
            return
        flight.client.sent()
        place.enter(flight)
        flight.timer = self._loop.call_at(now + self._predict_timeout_s, self._check_time, flight)
        if not flight.query:
            self._metrics.queue_seconds.observe(waited_s)

    def _release(self, flight: Flight, *, refill: bool = True) -> None:
        """Free a call's place, and give it to the next call in the queue."""
        place = flight.worker
        assert place is not None
        place.leave(flight)
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
        before, self._counted = self._counted, (self.queued, self.in_flight)
        self._metrics.queued.inc(self._counted[0] - before[0])
        self._metrics.in_flight.inc(self._counted[1] - before[1])
        if self.busy:
            self._idle.clear()
        else:
            self._idle.set()
