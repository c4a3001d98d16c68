"""Admits the calls of one model, passes on what its workers answer, and ends each call.

Runs in the front end's event loop; knows neither HTTP nor processes. A call takes a worker's free slot at once, waits
in the queue when there is none, and is refused at once when the queue is full. Every admitted call ends exactly once:
with its last chunk, with an error, or because its client left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final

from ....core.errors import (
    GenerationError,
    PredictTimeoutError,
    ServingError,
    UnavailableError,
    WorkerDiedError,
)
from ....ipc.protocol import (
    AnyMessage,
    BodyChunk,
    Break,
    Call,
    Cancel,
    EngineMetrics,
    Progress,
    Report,
    Start,
    Taken,
    Trace,
    UsageReport,
)
from ...metrics.model_metrics import ModelMetrics
from ..routing.router import Router, Routing
from ..routing.trail import NO_TRAIL, Trail
from .assigner import Assigner
from .flights import Client, Flight, Worker, WorkerSlots
from .occupancy import Occupancy
from .workers import PoolWorkers

#: How long a worker gets no calls after one has timed out: within this time it ends if its handler does not return.
SUSPICION_S: Final = 2.0
#: The gauge that says how many calls wait in a worker.
_WAITING: Final = "waiting_requests"


class Pool:
    """The calls of one model and the workers that answer them.

    Attributes:
        refusal: why calls are refused now; None: they are admitted, and wait if no worker is ready.
        workers: those that are ready.
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
        on_unused: Callable[[], None] = lambda: None,
        *,
        reruns: bool = False,
        router: Router | None = None,
    ) -> None:
        """A pool without workers.

        Args:
            on_wait: called when a call has begun to wait, here or in a worker.
            on_unused: called when the last call has left, see `unused`.
            batch_share, batch_busy_share: see `Assigner`.
            reruns: whether a call whose worker is lost goes to another one while its client has been sent nothing.
            router: chooses workers; None: one that calls' trails make no difference to.
        """
        self.refusal: str | None = f"model {name!r} is loading"
        self._name = name
        self._predict_timeout_s = predict_timeout_s
        self._metrics = metrics
        self._on_wait = on_wait
        self.workers = PoolWorkers(router or Router(Routing.LEAST_BUSY))
        self._assigner = Assigner(
            name,
            queue_size,
            self.workers,
            metrics,
            batch_share,
            batch_busy_share,
            reruns=reruns,
            on_assigned=self._start_timer,
            on_give_up=self._give_up,
            on_quiet=self._count,
        )
        self._occupancy = Occupancy(metrics, on_unused)
        self._loop = asyncio.get_running_loop()

    # ------------------------------------------------------------------------------------ calls

    def submit(
        self,
        call: Call,
        client: Client,
        *,
        query: bool = False,
        begins_within_s: float | None = None,
        trail: Trail = NO_TRAIL,
        on_end: Callable[[], None] | None = None,
    ) -> Flight:
        """Admit a call. From now on, `client` receives its answer and its end, unless `cancel` comes first.

        Args:
            query: whether the call generates nothing, and need not wait for calls that do.
            begins_within_s: how long the client would have it wait for a worker; None: as long as it takes.
            trail: what its worker is chosen by, if it is looked at (`PoolWorkers.reads_trails`).
            on_end: called once when the call neither waits nor occupies a worker any more; a worker may have it for
                longer than its client waits. Not called if the call is refused.

        Raises:
            UnavailableError: the model is loading or has failed.
            OverloadedError: every worker is busy and the queue is full, or would take too long.
        """
        if self.refusal is not None:
            raise UnavailableError(self.refusal)
        flight = Flight(call, client, self._loop.time(), query, trail=trail, on_end=on_end)
        if not self._assigner.submit(flight, begins_within_s):
            self._on_wait()
        self._count()
        return flight

    def submit_batch(self, call: Call, client: Client, trail: Trail = NO_TRAIL) -> Flight:
        """Queue a batch's call until there is a slot that no other call wants. It ends as `submit` describes.

        Raises:
            UnavailableError: the model is loading or has failed.
        """
        if self.refusal is not None or self._assigner.batches_closed:
            raise UnavailableError(self.refusal or f"model {self._name!r}: its workers end")
        flight = Flight(call, client, self._loop.time(), query=False, background=True, trail=trail)
        self._assigner.submit_batch(flight)
        self._count()
        return flight

    def close_batches(self) -> None:
        """Give batches no more slots: other instances take over. Waiting calls of batches end with UnavailableError."""
        error = UnavailableError(f"model {self._name!r}: its workers end")
        self._fail(self._assigner.close_batches(), error, "shutdown")

    def cancel(self, flight: Flight, reason: str) -> None:
        """Cancel a call whose client no longer wants the answer; `reason` is "disconnect" or "slow_reader"."""
        if self._assigner.remove(flight):
            flight.end()
        else:
            slots = flight.worker
            if slots is None or slots.flights.get(flight.id) is not flight:
                return  # it has ended
            slots.worker.send(Cancel(flight.id, "disconnect"))
            slots.abandon(flight)
        self._metrics.aborted(reason)
        self._count()

    def taken(self, flight: Flight, size: int) -> None:
        """Tell the worker that the client has taken `size` more bytes of its answer."""
        if flight.worker is not None:
            flight.heard_at = self._loop.time()
            flight.worker.worker.send(Taken(flight.id, size))

    def fail_all(self, error: ServingError, reason: str) -> None:
        """End every call, waiting or running, with `error`."""
        flights = self._assigner.take_all()
        for slots in self.workers:
            flights += self._take_back(slots)
        self._fail(flights, error, reason)

    @property
    def queued(self) -> int:
        """Calls that wait for a worker, those of batches not counted."""
        return self._assigner.queued

    @property
    def waiting(self) -> tuple[int, float | None]:
        """Calls that wait for a worker, queries not counted, and since when, in `time.monotonic`'s seconds."""
        return self._assigner.waiting

    @property
    def in_flight(self) -> int:
        """Calls that occupy a worker, including cancelled ones."""
        return self.workers.in_flight

    @property
    def busy(self) -> int:
        """Calls whose clients wait for an answer."""
        return self.queued + self.workers.clients

    @property
    def unused(self) -> bool:
        """Whether no call waits, those of batches included, and none occupies a worker."""
        return not (self.queued or self.in_flight or self._assigner.queued_batches)

    async def wait_idle(self) -> None:
        """Wait until no call is left."""
        await self._occupancy.wait_idle()

    # ------------------------------------------------------------------------------------ workers

    def add(self, worker: Worker) -> None:
        """Add a worker that is ready, and give it calls that wait."""
        self.refusal = None
        self._metrics.worker_came(worker.name, worker.info.engine, worker.node)
        self._assigner.fill(self.workers.add(worker))
        self._count()

    def hold(self, worker: Worker, held: bool) -> None:
        """Give a worker that does not respond no more calls, or give it calls again."""
        slots = self.workers.by_name.get(worker.name)
        if slots is None or slots.held == held:
            return
        slots.held = held
        self._assigner.fill(slots)
        self._count()

    async def retire(self, worker: Worker, timeout_s: float | None) -> None:
        """Give a worker no more calls, and wait until those that it has are answered; it is removed by its owner.

        After `timeout_s` seconds they fail with UnavailableError; None: they get the time that they take.
        """
        slots = self.workers.by_name.get(worker.name)
        if slots is None:
            return
        emptied = slots.retire()
        try:
            async with asyncio.timeout(timeout_s):
                await emptied.wait()
        except TimeoutError:
            left = self._take_back(slots)
            self._fail(left, UnavailableError(f"model {self._name!r}: the worker of this request ends"), "shutdown")

    def remove(self, worker: Worker, cause: str, *, lost: bool = False) -> None:
        """Remove a worker, if it is here: its calls end with WorkerDiedError; calls in the queue go on waiting.

        Args:
            lost: whether the worker has ended for no reason of its own: with `reruns`, its calls whose clients have
                been sent nothing yet wait again, in front, each once.
        """
        slots = self.workers.remove(worker)
        if slots is None:
            return
        self._metrics.worker_went(worker.name)
        again = [flight for flight in slots.flights.values() if lost and flight.kept is not None]
        flights = [flight for flight in slots.flights.values() if not lost or flight.kept is None]
        for flight in (*flights, *slots.abandoned.values()):
            self._release(flight, refill=False)
        for flight in reversed(again):  # the first one is put in front of the others
            self._assigner.put_back(flight)
        if again:
            for other in list(self.workers):
                self._assigner.fill(other)
            self._metrics.rerun(len(again))
        error = WorkerDiedError(f"the worker that was answering this request {cause}")
        self._fail(flights, _by(worker, error), "worker_died")

    def receive(self, worker: Worker, messages: Sequence[AnyMessage]) -> None:
        """Handle what a ready worker sent. All pieces of one answer among `messages` are written together."""
        slots = self.workers.by_name.get(worker.name)
        if slots is None:
            return
        now = self._loop.time()
        touched: dict[int, Flight] = {}
        others: list[AnyMessage] = []
        flights = slots.flights
        for message in messages:
            if isinstance(message, (BodyChunk, Start, Break)):
                flight = flights.get(message.id)
                if flight is None:  # sent before the cancellation arrived, or in answer to it
                    gone = slots.abandoned.get(message.id)
                    if gone is not None and (isinstance(message, Break) or getattr(message, "last", False)):
                        self._release(gone)
                        self._count()
                    continue
                touched[message.id] = flight
                flight.kept = None  # it can't begin again: its client is about to be sent something
                if isinstance(message, BodyChunk):
                    if not message.keep_alive:
                        flight.heard_at = now
                    flight.pieces.append(message.data)
                    flight.last = message.last
                elif isinstance(message, Break):
                    flight.last = flight.broken = True
                else:
                    flight.client.start(message.status, message.headers)
            elif not self._noted(slots, message):
                others.append(message)
        self._pass_on(touched.values(), worker)
        for message in others:
            worker.handle_message(message)
        if slots.suspect:
            self._trust(slots)

    # ------------------------------------------------------------------------------------ inside

    def _noted(self, slots: WorkerSlots, message: AnyMessage) -> bool:
        """Apply a message for metrics, a trace or a timer; whether it was one."""
        if isinstance(message, (Report, EngineMetrics)):
            self._metrics.apply(slots.worker.name, message)
            waiting = message.gauges.get(_WAITING) if isinstance(message, Report) else None
            if waiting is not None and slots.crowd(waiting):
                self._on_wait()
        elif isinstance(message, Progress):
            if (flight := slots.flights.get(message.id)) is not None:
                flight.heard_at = self._loop.time()
        elif isinstance(message, Trace):
            if (flight := slots.flights.get(message.id)) is not None:
                flight.client.noted(message)
        elif isinstance(message, UsageReport):
            if (flight := slots.flights.get(message.id) or slots.abandoned.get(message.id)) is not None:
                flight.client.used(flight.uncounted(message))
        else:
            return False
        return True

    def _pass_on(self, flights: Collection[Flight], worker: Worker) -> None:
        """Write the chunks that arrived for these calls. First send the worker its next calls: it works on them
        meanwhile.
        """
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

    def _take_back(self, slots: WorkerSlots) -> list[Flight]:
        """The calls that a worker has, which is told to give them up."""
        flights = list(slots.flights.values())
        for flight in flights:
            slots.worker.send(Cancel(flight.id, "disconnect"))
            self._release(flight, refill=False)
        return flights

    def _give_up(self, flight: Flight, error: ServingError) -> None:
        """End a call that has waited for as long as its client would have it wait."""
        self._fail([flight], error, "queue_timeout")

    def _release(self, flight: Flight, *, refill: bool = True) -> None:
        """Free a call's slot, and give it to the next call in the queue."""
        slots = flight.worker
        assert slots is not None
        slots.release(flight)
        flight.end()
        self._assigner.left(flight)
        if flight.timer is not None:
            flight.timer.cancel()
        if refill:
            self._assigner.fill(slots)

    def _start_timer(self, flight: Flight) -> None:
        flight.timer = self._loop.call_at(flight.heard_at + self._predict_timeout_s, self._check_time, flight)

    def _check_time(self, flight: Flight) -> None:
        """Time a call out, or set its timer again if something was heard of it: no timer is touched per chunk."""
        slots = flight.worker
        assert slots is not None
        due_at = flight.heard_at + self._predict_timeout_s
        if due_at > self._loop.time():
            flight.timer = self._loop.call_at(due_at, self._check_time, flight)
            return
        slots.worker.send(Cancel(flight.id, "timeout"))
        slots.suspect = True
        awaited = flight.id in slots.flights
        self._release(flight)
        error = PredictTimeoutError(
            f"no answer within {self._predict_timeout_s:g} s (option.predict_timeout of model {self._name!r})"
        )
        self._fail([flight] if awaited else [], _by(slots.worker, error), "timeout")
        self._loop.call_later(SUSPICION_S, self._trust, slots)

    def _trust(self, slots: WorkerSlots) -> None:
        if slots.suspect and self.workers.by_name.get(slots.worker.name) is slots:
            slots.suspect = False
            self._assigner.fill(slots)
            self._count()

    def _fail(self, flights: Sequence[Flight], error: ServingError, reason: str) -> None:
        for flight in flights:
            self._metrics.aborted(reason)
            flight.end()
            flight.client.fail(error)
        self._count()

    def _count(self) -> None:
        background, busy = self.workers.background, bool(self.busy)
        self._occupancy.update(self.queued, self.in_flight, background, busy=busy, unused=self.unused)


def _by(worker: Worker, error: GenerationError) -> GenerationError:
    """The error of a call that this worker had."""
    error.by_handler = worker.info.engine is None
    return error
