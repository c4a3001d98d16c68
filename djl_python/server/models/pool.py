"""Admission and dispatch for one model: which calls are admitted, which worker gets them, and how they end.

Runs in the front end's event loop; knows neither HTTP nor processes. A call takes a worker's free slot at once, waits
in the queue when there is none, and is refused at once when the queue is full. Every admitted call ends exactly once:
with its last chunk, with an error, or because its client left.

Calls of batches wait in a queue of their own, without a time limit. They get slots that no interactive call waits for,
and only a share of them, which is smaller while interactive calls come. They take no place in the interactive queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from ...core.errors import (
    PredictTimeoutError,
    ServingError,
    TooLargeError,
    UnavailableError,
    WorkerDiedError,
)
from ...ipc.protocol import (
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
from ..metrics.model_metrics import ModelMetrics
from .flights import Client, Flight, Worker, WorkerSlots
from .queues.batch_queue import BatchQueue
from .queues.call_queue import CallQueue
from .routing.router import Router, Routing
from .routing.trail import NO_TRAIL, Trail

#: How long a worker gets no calls after one has timed out: within this time it ends if its handler does not return.
SUSPICION_S: Final = 2.0
#: The gauge that says how many calls wait in a worker.
_WAITING: Final = "waiting_requests"
#: A call with a longer body does not go to another worker when its own is lost: the front end does not keep the body.
RERUN_BODY_BYTES: Final = 1 << 20


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
        on_unused: Callable[[], None] = lambda: None,
        *,
        reruns: bool = False,
        router: Router | None = None,
    ) -> None:
        """A pool without workers.

        Args:
            on_wait: called when a call has begun to wait, here or in a worker.
            on_unused: called when the last call has left, see `unused`.
            batch_share: the part of the calls that run at once in a worker that batches get, at least one of them.
            batch_busy_share: that part while other calls are here, or were a short time ago.
            reruns: whether a call whose worker is lost goes to another one while its client has been sent nothing.
            router: chooses workers; None: one that calls' trails make no difference to.
        """
        self.refusal: str | None = f"model {name!r} is loading"
        self._name = name
        self._predict_timeout_s = predict_timeout_s
        self._metrics = metrics
        self._on_wait = on_wait
        self._on_unused = on_unused
        self._reruns = reruns
        # Queries have a queue of their own: they are quick to answer, and do not wait for generation.
        self._queues = {query: CallQueue(name, queue_size, self._give_up) for query in (True, False)}
        self._batches = BatchQueue(batch_share, batch_busy_share, self._fill_when_quiet)
        self._slots: dict[str, WorkerSlots] = {}
        self._router = router or Router(Routing.LEAST_BUSY)
        self._several = False  # whether there has been more than one worker
        self._counted = (0, 0, 0)  # as added to the gauges: `queued`, `in_flight`, and the batches' part of each
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self._idle.set()
        self._was_unused = True

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
            trail: what its worker is chosen by, if it is looked at (`reads_trails`).
            on_end: called once when the call neither waits nor occupies a worker any more; a worker may have it for
                longer than its client waits. Not called if the call is refused.

        Raises:
            UnavailableError: the model is loading or has failed.
            OverloadedError: every worker is busy and the queue is full, or would take too long.
        """
        if self.refusal is not None:
            raise UnavailableError(self.refusal)
        now = self._loop.time()
        flight = Flight(call, client, now, query, trail=trail, on_end=on_end)
        if not query:
            self._batches.note_interactive()
        queue = self._queues[query]
        slots = self._slots_for(flight)
        if slots is not None:
            queue.enter(flight)
            self._dispatch(flight, slots)
        else:
            queue.add(flight, self._taken_by_batches, begins_within_s)
            self._on_wait()
        self._count()
        return flight

    def submit_batch(self, call: Call, client: Client, trail: Trail = NO_TRAIL) -> Flight:
        """Queue a batch's call until there is a slot that no other call wants. It ends as `submit` describes.

        Raises:
            UnavailableError: the model is loading or has failed.
        """
        if self.refusal is not None or self._batches.closed:
            raise UnavailableError(self.refusal or f"model {self._name!r}: its workers end")
        flight = Flight(call, client, self._loop.time(), query=False, background=True, trail=trail)
        self._batches.add(flight)
        for slots in sorted(self._slots.values(), key=lambda slots: slots.taken):
            self._fill_with_batches(slots)
        self._count()
        return flight

    def close_batches(self) -> None:
        """Give batches no more slots: other instances take over. Waiting calls of batches end with UnavailableError."""
        self._batches.closed = True
        self._fail(self._batches.take_all(), UnavailableError(f"model {self._name!r}: its workers end"), "shutdown")

    def cancel(self, flight: Flight, reason: str) -> None:
        """Cancel a call whose client no longer wants the answer; `reason` is "disconnect" or "slow_reader"."""
        if self._queues[flight.query].remove(flight) or self._batches.remove(flight):
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
        flights = self._batches.take_all()
        for queue in self._queues.values():
            flights += queue.take_all()
        for slots in self._slots.values():
            flights += self._take_back(slots)
        self._fail(flights, error, reason)

    @property
    def queued(self) -> int:
        """Calls that wait for a worker, those of batches not counted."""
        return sum(len(queue) for queue in self._queues.values())

    @property
    def waiting(self) -> tuple[int, float | None]:
        """Calls that wait for a worker, queries not counted, and since when, in `time.monotonic`'s seconds."""
        queue = self._queues[False]
        return len(queue), queue.waiting_since_s

    @property
    def in_flight(self) -> int:
        """Calls that occupy a worker, including cancelled ones."""
        return sum(slots.taken for slots in self._slots.values())

    @property
    def capacity(self) -> int:
        """Calls that the workers that are ready take at once."""
        return sum(slots.worker.info.capacity for slots in self._slots.values() if not slots.held)

    @property
    def reads_trails(self) -> bool:
        """Whether a call's trail makes a difference: there are, or were, several workers to choose from."""
        return self._several and self._router.reads_trails

    @property
    def shares_prefixes(self) -> bool:
        """Whether its engines keep what they have computed of a prompt for others that begin like it."""
        return any(slots.shares_prefixes for slots in self._slots.values())

    @property
    def busy(self) -> int:
        """Calls whose clients wait for an answer."""
        return self.queued + sum(len(slots.flights) for slots in self._slots.values())

    @property
    def unused(self) -> bool:
        """Whether no call waits, those of batches included, and none occupies a worker."""
        return not (self.queued or self.in_flight or self._batches)

    async def wait_idle(self) -> None:
        """Wait until no call is left."""
        await self._idle.wait()

    # ------------------------------------------------------------------------------------ workers

    def add(self, worker: Worker) -> None:
        """Add a worker that is ready, and give it calls that wait."""
        self.refusal = None
        self._metrics.worker_came(worker.name, worker.info.engine, worker.node)
        slots = self._slots[worker.name] = WorkerSlots(worker)
        self._several = self._several or len(self._slots) > 1
        self._fill(slots)
        self._count()

    def hold(self, worker: Worker, held: bool) -> None:
        """Give a worker that does not respond no more calls, or give it calls again."""
        slots = self._slots.get(worker.name)
        if slots is None or slots.held == held:
            return
        slots.held = held
        self._fill(slots)
        self._count()

    def idle_since(self, worker: Worker) -> float | None:
        """Since when a worker has had no call, in `time.monotonic`'s seconds; None if it has one, or is not here."""
        slots = self._slots.get(worker.name)
        return None if slots is None or slots.taken else slots.idle_since_s

    def crowded_since(self, worker: Worker) -> float | None:
        """Since when calls wait in a worker for its engine, in `time.monotonic`'s seconds; None if none does."""
        slots = self._slots.get(worker.name)
        return None if slots is None else slots.crowded_since_s

    async def retire(self, worker: Worker, timeout_s: float | None) -> None:
        """Give a worker no more calls, and wait until those that it has are answered; it is removed by its owner.

        After `timeout_s` seconds they fail with UnavailableError; None: they get the time that they take.
        """
        slots = self._slots.get(worker.name)
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
        slots = self._slots.pop(worker.name, None)
        if slots is None:
            return
        self._metrics.worker_went(worker.name)
        self._router.forget(worker.name)
        again = [flight for flight in slots.flights.values() if lost and flight.kept is not None]
        flights = [flight for flight in slots.flights.values() if not lost or flight.kept is None]
        for flight in (*flights, *slots.abandoned.values()):
            self._release(flight, refill=False)
        for flight in reversed(again):  # the first one is put in front of the others
            self._put_back(flight)
        if again:
            for other in list(self._slots.values()):
                self._fill(other)
            self._metrics.rerun(len(again))
        self._fail(flights, WorkerDiedError(f"the worker that was answering this request {cause}"), "worker_died")

    def receive(self, worker: Worker, messages: Sequence[AnyMessage]) -> None:
        """Handle what a ready worker sent. All pieces of one answer among `messages` are written together."""
        slots = self._slots.get(worker.name)
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

    def _put_back(self, flight: Flight) -> None:
        """Have a call wait again whose worker is lost."""
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

    def _slots_for(self, flight: Flight) -> WorkerSlots | None:
        """The worker that gets a call that has not waited; None: none has room for it."""
        query, tenant = flight.query, flight.precedence.tenant
        return self._router.choose(
            flight.trail, [slots for slots in self._slots.values() if slots.has_room(query, tenant)]
        )

    @property
    def _taken_by_batches(self) -> int:
        """How many slots calls of batches occupy."""
        return sum(slots.background for slots in self._slots.values())

    def _fill(self, slots: WorkerSlots) -> None:
        for query, queue in self._queues.items():
            while (flight := queue.take_next(slots, query)) is not None:
                self._dispatch(flight, slots)
        self._fill_with_batches(slots)

    def _fill_with_batches(self, slots: WorkerSlots) -> None:
        if not self._batches:
            return
        share = self._batches.share(bool(self._queues[False]) or any(slots.others for slots in self._slots.values()))
        while self._batches and slots.has_batch_room(share):
            self._dispatch(self._batches.next(), slots)

    def _fill_when_quiet(self) -> None:
        for slots in self._slots.values():
            self._fill_with_batches(slots)
        self._count()

    def _dispatch(self, flight: Flight, slots: WorkerSlots) -> None:
        assert flight.call is not None
        now = self._loop.time()
        flight.heard_at = now
        # A batch's waiting is as long as the batch: in a model's times it would hide how long others wait.
        waited_s = 0.0 if flight.background else time.monotonic() - flight.accepted_s
        # `waited_s` of the call itself is how long its model took to load.
        if self._reruns and not flight.rerun and len(flight.call.body) <= RERUN_BODY_BYTES:
            flight.kept = flight.call
        call, flight.call = msgspec.structs.replace(flight.call, waited_s=flight.call.waited_s + waited_s), None
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
        if (outcome := self._router.sent(flight.trail, slots)) is not None:
            self._metrics.routed(outcome)
        slots.enter(flight)
        flight.timer = self._loop.call_at(now + self._predict_timeout_s, self._check_time, flight)
        if not flight.query and not flight.background:
            self._metrics.queue_seconds.observe(waited_s)

    def _give_up(self, flight: Flight, error: ServingError) -> None:
        """End a call that has waited for as long as its client would have it wait."""
        self._fail([flight], error, "queue_timeout")

    def _release(self, flight: Flight, *, refill: bool = True) -> None:
        """Free a call's slot, and give it to the next call in the queue."""
        slots = flight.worker
        assert slots is not None
        slots.release(flight)
        flight.end()
        if not flight.background:
            self._queues[flight.query].leave(flight)
        if not (flight.background or flight.query):
            self._batches.note_interactive()
        if flight.timer is not None:
            flight.timer.cancel()
        if refill:
            self._fill(slots)

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
        self._fail([flight] if awaited else [], error, "timeout")
        self._loop.call_later(SUSPICION_S, self._trust, slots)

    def _trust(self, slots: WorkerSlots) -> None:
        if slots.suspect and self._slots.get(slots.worker.name) is slots:
            slots.suspect = False
            self._fill(slots)
            self._count()

    def _fail(self, flights: Sequence[Flight], error: ServingError, reason: str) -> None:
        for flight in flights:
            self._metrics.aborted(reason)
            flight.end()
            flight.client.fail(error)
        self._count()

    def _count(self) -> None:
        # Only differences are added: during a reload, a model has two pools.
        before, self._counted = self._counted, (self.queued, self.in_flight, self._taken_by_batches)
        self._metrics.queued.inc(self._counted[0] - before[0])
        self._metrics.in_flight.inc(self._counted[1] - before[1])
        self._metrics.batch_in_flight.inc(self._counted[2] - before[2])
        if self.busy:
            self._idle.clear()
        else:
            self._idle.set()
        was_unused, self._was_unused = self._was_unused, self.unused
        if self._was_unused and not was_unused:
            self._on_unused()
