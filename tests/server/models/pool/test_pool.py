import asyncio
from collections.abc import Callable

import msgspec
import pytest

from djl_python.core.engine_info import EngineInfo
from djl_python.core.errors import OverloadedError, ServingError, UnavailableError
from djl_python.ipc.protocol import (
    AnyMessage,
    BodyChunk,
    Break,
    Call,
    Cancel,
    Report,
    Start,
    Status,
    Taken,
    Trace,
    UsageReport,
    WorkerInfo,
)
from djl_python.server.metrics.metrics import Metrics
from djl_python.server.metrics.model_metrics import ModelMetrics
from djl_python.server.models.pool import batch_queue
from djl_python.server.models.pool.flights import Flight, next_id
from djl_python.server.models.pool.pool import Pool
from djl_python.server.models.routing.router import Router
from djl_python.server.models.routing.trail import trail_of
from tests.server.harness import until


class Recorder:
    """A client that remembers."""

    def __init__(self) -> None:
        self.got: list[object] = []
        self.error: ServingError | None = None
        self.holds_body = True

    def sent(self) -> None:
        self.holds_body = False

    def start(self, status: int, headers: dict[str, str]) -> None:
        self.got.append(status)

    def body(self, data: bytes, last: bool) -> None:
        self.got.append((data, last))

    def noted(self, notes: Trace) -> None:
        self.got.append(notes)

    def used(self, usage: UsageReport) -> None:
        self.got.append(usage)

    def break_off(self) -> None:
        self.got.append("broken off")

    def fail(self, error: ServingError) -> None:
        assert self.error is None
        self.error = error


class Worker:
    def __init__(
        self, name: str = "0", capacity: int = 1, queries: int = 0, *, at_once: int = 0, spare: bool = False
    ) -> None:
        self.name, self.spare, self.node = name, spare, ""
        self.info = WorkerInfo(capacity, at_once=at_once or capacity, queries=queries)
        self.sent: list[AnyMessage] = []
        self.left = 0  # how many of them are on their way
        self.ended: set[int] = set()

    def send(self, message: AnyMessage) -> None:
        self.sent.append(message)

    def flush(self) -> None:
        self.left = len(self.sent)

    def handle_message(self, message: AnyMessage) -> None:
        raise AssertionError(message)

    @property
    def calls(self) -> list[int]:
        return [message.id for message in self.sent if isinstance(message, Call)]

    @property
    def cancels(self) -> list[tuple[int, str]]:
        return [(message.id, message.reason) for message in self.sent if isinstance(message, Cancel)]


def call() -> Call:
    return Call(next_id(), "lmi", "predict", "POST", "/invocations", (), {}, b"{}")


def pool(
    *workers: Worker, queue_size: int = 10, predict_timeout_s: float = 60, metrics: ModelMetrics | None = None
) -> Pool:
    made = Pool("m", queue_size, predict_timeout_s, metrics or Metrics().model("m", ""))
    for worker in workers:
        made.add(worker)
    return made


async def test_calls_are_refused_until_a_worker_is_ready() -> None:
    loading = pool()
    with pytest.raises(UnavailableError, match="loading"):
        loading.submit(call(), Recorder())
    loading.add(Worker())
    loading.submit(call(), Recorder())


async def test_the_submitter_of_a_call_is_told_once_when_it_has_ended_whatever_its_end() -> None:
    ended: list[str] = []

    def submit(served: Pool, name: str) -> Flight:
        return served.submit(call(), Recorder(), on_end=lambda: ended.append(name))

    worker = Worker(capacity=2)
    served = pool(worker, queue_size=3)
    answered, left = submit(served, "answered"), submit(served, "left")
    waiting = submit(served, "left while it waited")
    served.cancel(waiting, "disconnect")
    assert ended == ["left while it waited"]
    served.receive(worker, [BodyChunk(answered.id, b"", True)])
    served.cancel(left, "disconnect")
    assert ended == ["left while it waited", "answered"]  # the worker still has the other
    served.receive(worker, [Break(left.id)])
    assert ended[2:] == ["left"]
    for name in ("lost", "lost too", "failed while it waited"):
        submit(served, name)
    served.remove(worker, "has died")
    assert ended[3:] == ["lost", "lost too"]
    served.fail_all(UnavailableError("no more"), "shutdown")
    assert ended[5:] == ["failed while it waited"]


async def test_a_pool_without_calls_is_idle() -> None:
    async with asyncio.timeout(5):
        await pool().wait_idle()
    served = pool(worker := Worker())
    flight = served.submit(call(), Recorder())
    idle = asyncio.create_task(served.wait_idle())
    await asyncio.sleep(0)
    assert not idle.done()
    served.receive(worker, [BodyChunk(flight.id, b"", True)])
    await idle


async def test_a_body_is_held_until_it_is_sent() -> None:
    served = pool(worker := Worker())
    first, waiting = Recorder(), Recorder()
    flight = served.submit(call(), first)
    served.submit(call(), waiting)
    assert not first.holds_body and waiting.holds_body
    served.receive(worker, [BodyChunk(flight.id, b"", True)])
    assert not waiting.holds_body


async def test_a_waiting_call_is_dispatched_before_the_answer_is_written() -> None:
    worker = Worker()
    served = pool(worker)
    seen: list[tuple[list[int], int]] = []

    class Watching(Recorder):
        def body(self, data: bytes, last: bool) -> None:
            seen.append((worker.calls, worker.left))

    first = served.submit(call(), Watching())
    waiting = served.submit(call(), Recorder())
    served.receive(worker, [Start(first.id, 200, {}), BodyChunk(first.id, b"done", True)])
    assert seen == [([first.id, waiting.id], 2)]


async def test_the_least_busy_worker_gets_the_call() -> None:
    a, b = Worker("a", 2), Worker("b", 2)
    shared = pool(a, b)
    taken = []
    for _ in range(4):
        shared.submit(call(), Recorder())
        taken.append((len(a.calls), len(b.calls)))
    assert taken == [(1, 0), (1, 1), (2, 1), (2, 2)]


async def test_calls_wait_in_order_and_one_too_many_is_refused_at_once() -> None:
    worker = Worker()
    small = pool(worker, queue_size=2)
    flights = [small.submit(call(), Recorder()) for _ in range(3)]
    with pytest.raises(OverloadedError, match="2 requests are waiting"):
        small.submit(call(), Recorder())
    assert worker.calls == [flights[0].id]
    for flight in flights:
        small.receive(worker, [Start(flight.id, 200, {}), BodyChunk(flight.id, b"x", True)])
    assert worker.calls == [flight.id for flight in flights]
    assert small.busy == 0
    await small.wait_idle()


async def test_a_call_says_how_long_it_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("djl_python.server.models.pool.assigner.time.monotonic", lambda: now_s)
    worker = Worker()
    served = pool(worker)
    first = served.submit(call(), Recorder())
    served.submit(call(), Recorder())
    now_s = 103.0
    served.receive(worker, [BodyChunk(first.id, b"", True)])
    assert [message.waited_s for message in worker.sent if isinstance(message, Call)] == [0.0, 3.0]


async def test_queries_take_no_place_of_calls_and_wait_for_none() -> None:
    metrics = Metrics()
    worker = Worker(queries=1)
    full = pool(worker, queue_size=1, metrics=metrics.model("m", ""))
    running, waiting = full.submit(call(), Recorder()), full.submit(call(), Recorder())
    with pytest.raises(OverloadedError):
        full.submit(call(), Recorder())
    query = full.submit(call(), Recorder(), query=True)
    assert worker.calls == [running.id, query.id]
    second = full.submit(call(), Recorder(), query=True)
    with pytest.raises(OverloadedError):
        full.submit(call(), Recorder(), query=True)
    full.receive(worker, [BodyChunk(query.id, b"", True)])
    assert worker.calls == [running.id, query.id, second.id]
    full.receive(worker, [BodyChunk(running.id, b"", True)])
    assert worker.calls[-1] == waiting.id
    full.cancel(second, "disconnect")
    full.receive(worker, [BodyChunk(waiting.id, b"", True)])
    await full.wait_idle()
    assert b'djl_queue_seconds_count{model="m",stage="server",version=""} 2.0' in metrics.render()


async def test_queries_wait_while_there_is_no_worker() -> None:
    worker = Worker(queries=4)
    shared = pool(worker)
    shared.remove(worker, "has ended")
    calls = [shared.submit(call(), Recorder(), query=query).id for query in (False, True, True)]
    shared.add(successor := Worker(queries=4))
    assert sorted(successor.calls) == calls
    shared.submit(call(), client := Recorder(), query=True)
    shared.remove(successor, "has ended")
    assert client.error is not None and client.error.kind == "worker_died"
    assert shared.busy == 0


async def test_to_a_handler_without_queries_they_are_calls_like_others() -> None:
    worker = Worker()
    shared = pool(worker)
    first, query = shared.submit(call(), Recorder()), shared.submit(call(), Recorder(), query=True)
    assert worker.calls == [first.id]
    shared.receive(worker, [BodyChunk(first.id, b"", True)])
    last = shared.submit(call(), Recorder())
    assert worker.calls == [first.id, query.id]
    shared.receive(worker, [BodyChunk(query.id, b"", True)])
    assert worker.calls == [first.id, query.id, last.id]


async def test_the_pieces_of_one_read_are_written_at_once() -> None:
    worker, client = Worker(), Recorder()
    shared = pool(worker)
    id = shared.submit(call(), client).id
    shared.receive(worker, [Start(id, 200, {}), BodyChunk(id, b"a", False), BodyChunk(id, b"b", False)])
    shared.receive(worker, [BodyChunk(next_id(), b"of a call that has left", False), BodyChunk(id, b"c", False)])
    shared.receive(worker, [BodyChunk(id, b"d", False), BodyChunk(id, b"", True)])
    assert client.got == [200, (b"ab", False), (b"c", False), (b"d", True)]


async def test_a_start_alone_is_written_at_once_and_what_the_client_takes_is_told() -> None:
    worker, client = Worker(), Recorder()
    shared = pool(worker)
    flight = shared.submit(call(), client)
    shared.receive(worker, [Start(flight.id, 200, {})])
    assert client.got == [200, (b"", False)] and shared.in_flight == 1
    shared.taken(flight, 7)
    assert worker.sent[-1] == Taken(flight.id, 7)


async def test_a_call_that_is_too_long_to_be_passed_on_takes_no_place() -> None:
    class Strict(Worker):
        def send(self, message: AnyMessage) -> None:
            if isinstance(message, Call) and message.body == b"long":
                raise ValueError("too long")
            super().send(message)

    worker, client = Strict(), Recorder()
    shared = pool(worker)
    first = shared.submit(call(), Recorder())
    shared.submit(msgspec.structs.replace(call(), body=b"long"), client)
    following = shared.submit(call(), Recorder())
    shared.receive(worker, [BodyChunk(first.id, b"", True)])
    assert client.error is not None and "too long" in client.error.message
    assert worker.calls == [first.id, following.id] and shared.in_flight == shared.busy == 1


async def test_two_reads_may_come_at_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop's clock may stand still while it handles what came together."""
    now = asyncio.get_running_loop().time()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    worker, client = Worker(), Recorder()
    shared = pool(worker)
    id = shared.submit(call(), client).id
    shared.receive(worker, [Start(id, 200, {}), BodyChunk(id, b"a", False)])
    shared.receive(worker, [BodyChunk(id, b"b", True)])
    assert client.got == [200, (b"a", False), (b"b", True)]


async def test_a_call_whose_client_left_while_it_waited_never_reaches_a_worker() -> None:
    worker = Worker()
    shared = pool(worker)
    first, second, third = (shared.submit(call(), Recorder()) for _ in range(3))
    shared.cancel(second, "disconnect")
    shared.receive(worker, [BodyChunk(first.id, b"", True)])
    assert worker.calls == [first.id, third.id]
    assert worker.cancels == []


@pytest.mark.parametrize("end", [lambda id: BodyChunk(id, b"", True), Break], ids=["last chunk", "break"])
async def test_a_running_call_is_cancelled_once_and_its_place_given_on(end: Callable[[int], AnyMessage]) -> None:
    worker, client = Worker(), Recorder()
    shared = pool(worker)
    first, second = shared.submit(call(), client), shared.submit(call(), Recorder())
    shared.cancel(first, "disconnect")
    shared.cancel(first, "disconnect")
    assert worker.cancels == [(first.id, "disconnect")]
    shared.receive(worker, [Start(first.id, 200, {}), BodyChunk(first.id, b"late", False)])  # crossed on the way
    assert worker.calls == [first.id]  # a function can't be interrupted
    assert (shared.in_flight, shared.busy) == (1, 1)  # with the worker; waited for
    shared.receive(worker, [end(first.id)])
    shared.receive(worker, [end(first.id)])  # of a call that is not there any more
    assert worker.calls == [first.id, second.id]
    assert client.got == [] and client.error is None


async def test_of_two_that_have_as_much_a_spare_one_gets_no_more() -> None:
    spare, other = Worker("a", 2, spare=True), Worker("b", 2)
    shared = pool(spare, other)
    for _ in range(3):
        shared.submit(call(), Recorder())
    assert (len(spare.calls), len(other.calls)) == (1, 2)


async def test_the_pool_reports_waiting_calls_and_idle_workers() -> None:
    waits: list[tuple[int, float | None]] = []
    metrics = Metrics().model("m", "")
    shared = Pool("m", 5, 60, metrics, lambda: waits.append(shared.waiting))
    shared.add(worker := Worker(queries=1))
    came_s = shared.workers.idle_since(worker)
    assert came_s is not None
    assert list(shared.waiting) == [0, None]
    first, second = shared.submit(call(), Recorder()), shared.submit(call(), Recorder())
    shared.submit(call(), Recorder(), query=True)
    shared.submit(call(), Recorder(), query=True)  # queries wait too, but not for what another worker is for
    assert shared.workers.idle_since(worker) is None
    assert waits == [(1, second.accepted_s)] * 2 and shared.waiting == waits[0]
    shared.fail_all(UnavailableError("over"), "shutdown")
    idle_s = shared.workers.idle_since(worker)
    assert idle_s is not None and idle_s >= max(came_s, first.accepted_s)
    shared.remove(worker, "has ended")
    assert shared.workers.idle_since(worker) is None


async def test_a_call_goes_to_who_is_idle_rather_than_to_who_is_busy_for_nobody() -> None:
    busy, idle = Worker("a"), Worker("b")
    shared = pool(busy, idle)
    shared.cancel(shared.submit(call(), Recorder()), "disconnect")
    following = shared.submit(call(), Recorder())
    assert (len(busy.calls), idle.calls) == (1, [following.id])


async def test_a_call_that_nobody_waits_for_has_its_time_too() -> None:
    worker = Worker()
    shared = pool(worker, predict_timeout_s=0.05)
    client = Recorder()
    gone = shared.submit(call(), client)
    shared.cancel(gone, "disconnect")
    async with asyncio.timeout(5):
        while len(worker.cancels) < 2:
            await asyncio.sleep(0.01)
    assert worker.cancels == [(gone.id, "disconnect"), (gone.id, "timeout")] and client.error is None


async def test_a_broken_answer_has_what_came_before() -> None:
    worker, client = Worker(), Recorder()
    shared = pool(worker)
    id = shared.submit(call(), client).id
    shared.receive(worker, [Start(id, 200, {}), BodyChunk(id, b"a", False), Break(id)])
    assert client.got == [200, (b"a", False), "broken off"]
    assert shared.busy == 0
    id = shared.submit(call(), client := Recorder()).id
    shared.receive(worker, [Start(id, 200, {}), BodyChunk(id, b"a", False)])
    shared.receive(worker, [Break(id)])
    assert client.got == [200, (b"a", False), "broken off"]


async def test_messages_about_no_call_go_to_the_worker() -> None:
    class Listening(Worker):
        def handle_message(self, message: AnyMessage) -> None:
            heard.append(message)

    heard: list[AnyMessage] = []
    shared = pool(worker := Listening())
    shared.receive(worker, [Report(), Status("failed")])
    assert heard == [Status("failed")]


async def test_a_workers_death_fails_its_calls_and_no_others() -> None:
    a, b = Worker("a"), Worker("b")
    shared = pool(a, b)
    clients = [Recorder() for _ in range(3)]
    for client in clients:
        shared.submit(call(), client)
    shared.remove(a, "has ended")
    assert [client.error.kind if client.error else "" for client in clients] == ["worker_died", "", ""]
    shared.remove(b, "has ended")
    assert clients[1].error is not None and clients[2].error is None  # that one was waiting, and waits on
    shared.remove(b, "has ended")  # its socket closes after it was killed
    shared.receive(b, [Report()])
    successor = Worker("a")
    shared.add(successor)
    assert len(successor.calls) == 1


async def test_a_call_that_takes_too_long_is_cancelled_and_its_worker_left_in_peace_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("djl_python.server.models.pool.pool.SUSPICION_S", 0.1)
    worker, client = Worker(), Recorder()
    shared = pool(worker, predict_timeout_s=0.05)
    flight, waiting = shared.submit(call(), client), shared.submit(call(), Recorder())
    async with asyncio.timeout(5):
        while client.error is None:
            await asyncio.sleep(0.01)
        assert client.error.kind == "timeout"
        assert "0.05 s (option.predict_timeout of model 'm')" in client.error.message
        assert worker.cancels == [(flight.id, "timeout")]
        assert worker.calls == [flight.id]
        while worker.calls != [flight.id, waiting.id]:
            await asyncio.sleep(0.01)


async def test_a_worker_that_has_gone_meanwhile_gets_no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("djl_python.server.models.pool.pool.SUSPICION_S", 0.02)
    worker = Worker()
    shared = pool(worker, predict_timeout_s=0.02)
    flight = shared.submit(call(), Recorder())
    shared.submit(call(), Recorder())
    async with asyncio.timeout(5):
        while not worker.cancels:
            await asyncio.sleep(0.01)
    shared.remove(worker, "has ended")
    await asyncio.sleep(0.05)
    assert worker.calls == [flight.id] and shared.queued == 1


async def test_a_worker_that_speaks_again_gets_calls_at_once() -> None:
    worker, client = Worker(), Recorder()
    shared = pool(worker, predict_timeout_s=0.05)
    shared.submit(call(), client)
    waiting = shared.submit(call(), Recorder())
    async with asyncio.timeout(1):
        while client.error is None:
            await asyncio.sleep(0.01)
    shared.receive(worker, [Report()])
    assert worker.calls[-1] == waiting.id


async def test_a_worker_that_is_held_keeps_its_calls_and_gets_no_others() -> None:
    worker = Worker(capacity=2)
    shared = pool(worker)
    running = shared.submit(call(), client := Recorder())
    shared.hold(worker, True)
    waiting = shared.submit(call(), Recorder())
    assert (worker.calls, shared.queued, shared.workers.capacity) == ([running.id], 1, 0)
    shared.receive(worker, [BodyChunk(running.id, b"x", True)])
    assert client.got == [(b"x", True)] and worker.calls == [running.id]
    shared.hold(worker, False)
    assert worker.calls == [running.id, waiting.id]
    shared.remove(worker, "has ended")
    shared.hold(worker, True)  # it has gone meanwhile


async def test_the_time_is_counted_from_chunk_to_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = asyncio.get_running_loop().time()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    worker, client, other = Worker(capacity=3), Recorder(), Recorder()
    shared = pool(worker, predict_timeout_s=60)
    flight = shared.submit(call(), client)
    shared.receive(worker, [Start(flight.id, 200, {})])

    async def chunk_after_50_s(*others: AnyMessage) -> None:
        nonlocal now_s
        now_s += 50
        for _ in range(3):  # what is due comes in the next turn
            await asyncio.sleep(0)
        shared.receive(worker, [BodyChunk(flight.id, b"x", False), *others])

    for _ in range(5):
        await chunk_after_50_s()
    assert client.error is None
    stuck = [shared.submit(call(), other).id, shared.submit(call(), Recorder()).id]
    await chunk_after_50_s()
    assert other.error is None
    await chunk_after_50_s()
    assert other.error is not None and client.error is None
    assert worker.cancels == [(id, "timeout") for id in stuck]
    quiet = shared.submit(call(), other := Recorder())
    await chunk_after_50_s(Start(quiet.id, 200, {}), BodyChunk(quiet.id, b":", False, keep_alive=True))
    assert other.got == [200, (b":", False)]
    await chunk_after_50_s()
    assert worker.cancels[2:] == [(quiet.id, "timeout")] and client.error is None
    for _ in range(3):  # a client that takes what it has been sent
        now_s += 50
        await asyncio.sleep(0)
        shared.taken(flight, 1)
    assert client.error is None
    now_s += 61
    for _ in range(3):
        await asyncio.sleep(0)
    assert client.error is not None and client.error.kind == "timeout", "an answer that has begun may stop, too"


async def test_a_call_that_has_ended_has_no_time_to_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = asyncio.get_running_loop().time()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    worker, client = Worker(capacity=2), Recorder()
    shared = pool(worker, predict_timeout_s=60)
    shared.receive(worker, [BodyChunk(shared.submit(call(), client).id, b"", True)])
    shared.submit(call(), lost := Recorder())
    gone = shared.submit(call(), Recorder())
    shared.cancel(gone, "disconnect")
    shared.remove(worker, "has ended")
    now_s += 61
    for _ in range(3):
        await asyncio.sleep(0)
    assert worker.cancels == [(gone.id, "disconnect")] and client.error is None
    assert lost.error is not None and lost.error.kind == "worker_died"


async def test_fail_all_ends_what_runs_and_what_waits() -> None:
    worker = Worker()
    shared = pool(worker)
    clients = [Recorder(), Recorder()]
    first, _ = [shared.submit(call(), client) for client in clients]
    shared.fail_all(UnavailableError("the server is shutting down"), "shutdown")
    assert [client.error.kind for client in clients if client.error] == ["unavailable"] * 2
    assert worker.cancels == [(first.id, "disconnect")] and shared.busy == 0


async def test_a_worker_that_retires_gets_no_more_calls_and_is_done_when_it_has_none() -> None:
    retiring, staying = Worker("0", 2, queries=1), Worker("1", 1, queries=1)
    shared = pool(retiring, staying)
    flights = [shared.submit(call(), Recorder()) for _ in range(3)]
    done = asyncio.create_task(shared.retire(retiring, timeout_s=60))
    await asyncio.sleep(0)
    waiting = shared.submit(call(), Recorder())
    query = shared.submit(call(), Recorder(), query=True)
    shared.receive(retiring, [BodyChunk(flights[0].id, b"", True)])
    shared.cancel(flights[2], "disconnect")  # which no client waits for
    await done
    assert retiring.calls == [flights[0].id, flights[2].id]
    shared.receive(staying, [BodyChunk(flights[1].id, b"", True)])
    assert staying.calls == [flights[1].id, query.id, waiting.id]


async def test_calls_of_a_worker_that_retires_have_their_time() -> None:
    shared = pool(worker := Worker())
    client = Recorder()
    flight = shared.submit(call(), client)
    await shared.retire(worker, timeout_s=0.01)
    assert client.error is not None and client.error.kind == "unavailable"
    assert worker.cancels == [(flight.id, "disconnect")]


async def test_a_worker_that_ends_while_it_retires_is_not_waited_for() -> None:
    shared = pool(worker := Worker())
    client = Recorder()
    shared.submit(call(), client)
    done = asyncio.create_task(shared.retire(worker, timeout_s=60))
    await asyncio.sleep(0)
    shared.remove(worker, "has ended")
    await done
    assert client.error is not None and client.error.kind == "worker_died"
    await shared.retire(worker, timeout_s=60)  # it is not there


async def test_a_model_that_is_reloaded_counts_both_its_instances() -> None:
    metrics = Metrics()
    model = metrics.model("m", "")
    worker, other = Worker("0"), Worker("1")
    old, new = pool(worker, metrics=model), pool(other, metrics=model)

    def counted() -> tuple[str, ...]:
        lines = metrics.render().decode().splitlines()
        names = ("djl_in_flight_requests{", "djl_queued_requests{")
        return tuple(line.rpartition(" ")[2] for name in names for line in lines if line.startswith(name))

    flight = old.submit(call(), Recorder())
    *_, gone = [new.submit(call(), Recorder()) for _ in range(4)]
    assert counted() == ("2.0", "3.0")
    new.cancel(gone, "disconnect")
    assert counted() == ("2.0", "2.0")
    assert b'djl_aborted_requests_total{model="m",reason="disconnect",version=""} 1.0' in metrics.render()
    old.receive(worker, [Start(flight.id, 200, {}), BodyChunk(flight.id, b"", True)])
    assert counted() == ("1.0", "2.0")
    busy = Report(gauges={"running_requests": 1})
    new.receive(other, [busy])
    for _ in range(2):  # once for its connection, and once for its process
        old.remove(worker, "ended")
    assert b'djl_running_requests{model="m",version="",worker="1"} 1.0' in metrics.render()
    new.remove(other, "ended")
    assert b"djl_running_requests{" not in metrics.render()


# ------------------------------------------------------------------------------------------------ batches


async def test_batches_get_a_share_of_the_places() -> None:
    served = Pool("m", 10, 60, Metrics().model("m", ""), batch_share=0.5)
    served.add(worker := Worker(capacity=4))
    flights = [served.submit_batch(call(), Recorder()) for _ in range(5)]
    assert worker.calls == [flight.id for flight in flights[:2]]
    served.receive(worker, [BodyChunk(flights[0].id, b"", True)])
    assert worker.calls == [flight.id for flight in flights[:3]]
    assert (served.queued, served.in_flight) == (0, 2)


async def test_the_share_is_one_of_what_runs_at_once() -> None:
    """What waits in the worker for a place there is in others' way."""
    served = Pool("m", 10, 60, Metrics().model("m", ""), batch_share=0.5)
    served.add(worker := Worker(capacity=8, at_once=4))
    for _ in range(5):
        served.submit_batch(call(), Recorder())
    assert len(worker.calls) == 2
    whole = Pool("m", 10, 60, Metrics().model("m", ""), batch_share=1.0)
    whole.add(worker := Worker(capacity=8, at_once=4))
    for _ in range(10):
        whole.submit_batch(call(), Recorder())
    assert len(worker.calls) == 8  # nobody else is expected: each has a successor at hand


async def test_batches_have_less_while_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_queue, "QUIET_S", 0.05)
    served = Pool("m", 10, 60, Metrics().model("m", ""), batch_share=0.5, batch_busy_share=0.25)
    served.add(worker := Worker(capacity=8))
    other = served.submit(call(), Recorder())
    batch = [served.submit_batch(call(), Recorder()) for _ in range(6)]
    assert worker.calls == [other.id, *(flight.id for flight in batch[:2])]
    served.receive(worker, [BodyChunk(other.id, b"", True)])
    assert len(worker.calls) == 3  # the next may come soon
    await until(lambda: worker.calls[3:] == [flight.id for flight in batch[2:4]])
    served.submit(call(), Recorder())
    served.receive(worker, [BodyChunk(flight.id, b"", True) for flight in batch[:2]])
    assert len(worker.calls) == 6  # of the four, two still run: no more until it is quiet again


async def test_a_batch_gets_one_place_at_least_and_only_if_nobody_else_waits() -> None:
    served = pool(worker := Worker())
    first = served.submit(call(), Recorder())
    batch = served.submit_batch(call(), Recorder())
    second = served.submit(call(), Recorder())
    served.receive(worker, [BodyChunk(first.id, b"", True)])
    served.receive(worker, [BodyChunk(second.id, b"", True)])
    assert worker.calls == [first.id, second.id, batch.id]


async def test_a_batch_costs_nobody_a_place_in_the_queue() -> None:
    served = pool(Worker(capacity=2), queue_size=1)
    for _ in range(100):
        served.submit_batch(call(), Recorder())
    for _ in range(3):  # as many as without the batch: two places, one that waits
        served.submit(call(), Recorder())
    with pytest.raises(OverloadedError):
        served.submit(call(), Recorder())


async def test_a_batchs_call_is_taken_back() -> None:
    served = pool(worker := Worker())
    running, waiting = (served.submit_batch(call(), Recorder()) for _ in range(2))
    served.cancel(waiting, "disconnect")
    served.cancel(running, "disconnect")
    assert worker.cancels == [(running.id, "disconnect")]
    served.receive(worker, [BodyChunk(running.id, b"", True)])
    assert worker.calls == [running.id]


async def test_batches_are_sent_away_where_others_take_over() -> None:
    served = pool(worker := Worker())
    running, waiting = Recorder(), Recorder()
    flight = served.submit_batch(call(), running)
    served.submit_batch(call(), waiting)
    served.close_batches()
    assert isinstance(waiting.error, UnavailableError) and running.error is None
    with pytest.raises(UnavailableError):
        served.submit_batch(call(), Recorder())
    served.receive(worker, [BodyChunk(flight.id, b"", True)])
    await served.wait_idle()


async def test_a_model_that_fails_ends_a_batchs_calls() -> None:
    served, client = pool(), Recorder()
    with pytest.raises(UnavailableError, match="loading"):
        served.submit_batch(call(), client)
    served = pool(Worker())
    served.submit_batch(call(), Recorder())
    served.submit_batch(call(), client)
    served.fail_all(UnavailableError("it has failed"), "shutdown")
    assert client.error is not None


def sharing(name: str) -> Worker:
    """A worker whose engine shares prefixes."""
    worker = Worker(name, 8, at_once=4)
    worker.info = msgspec.structs.replace(worker.info, engine=EngineInfo(shares_prefixes=True))
    return worker


async def test_a_call_goes_to_the_worker_that_knows_its_prompt_until_that_one_is_lost() -> None:
    metrics = Metrics()
    served = Pool("m", 10, 60, metrics.model("m", ""), router=Router())
    served.add(first := sharing("0"))
    assert not served.workers.reads_trails  # there is no choice
    served.add(second := sharing("1"))
    assert served.workers.reads_trails and served.workers.shares_prefixes
    trails = [trail_of([b"%d" % number * 4096]) for number in range(2)]
    for _ in range(2):
        for trail in trails:
            served.submit(call(), Recorder(), trail=trail)
    assert (len(first.calls), len(second.calls)) == (2, 2)
    served.submit(call(), Recorder(), trail=trails[1])
    assert len(second.calls) == 3
    served.remove(second, "was killed")
    served.add(second := sharing("1"))
    served.submit(call(), Recorder(), trail=trails[1])
    assert (len(first.calls), len(second.calls)) == (2, 1)
    counted = {
        sample.labels["outcome"]: sample.value
        for family in metrics.families.counters["routed_requests"].collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    }
    assert counted == {"miss": 3, "hit": 3}


async def test_calls_that_waited_are_remembered_where_they_went() -> None:
    served = Pool("m", 10, 60, Metrics().model("m", ""), router=Router())
    served.add(first := sharing("0"))
    served.add(second := sharing("1"))
    started = [served.submit(call(), Recorder()) for _ in range(16)]  # no room is left
    trail = trail_of([b"x" * 4096])
    served.submit(call(), Recorder(), trail=trail)
    assert served.queued == 1
    served.receive(second, [BodyChunk(flight.id, b"", True) for flight in started if flight.id in second.calls])
    assert served.queued == 0 and len(second.calls) == 9
    served.receive(first, [BodyChunk(flight.id, b"", True) for flight in started if flight.id in first.calls])
    served.submit(call(), Recorder(), trail=trail)
    assert len(second.calls) == 10


async def test_a_batchs_calls_are_remembered_where_they_went() -> None:
    served = Pool("m", 10, 60, Metrics().model("m", ""), router=Router())
    served.add(sharing("0"))
    served.add(second := sharing("1"))
    served.submit(call(), Recorder())
    trail = trail_of([b"x" * 4096])
    served.submit_batch(call(), Recorder(), trail)
    assert len(second.calls) == 1
    served.submit(call(), Recorder(), trail=trail)
    assert len(second.calls) == 2
