"""Calls whose worker is lost, in the pool: which go to another worker, in which order, and how often."""

import msgspec

from djl_python.core.errors import WorkerDiedError
from djl_python.ipc.protocol import BodyChunk, Progress, Report, Start, UsageReport
from djl_python.server.metrics.metrics import Metrics
from djl_python.server.models.pool.assigner import RERUN_BODY_BYTES
from djl_python.server.models.pool.pool import Pool
from tests.server.models.pool.test_pool import Recorder, Worker, call


def pool(*workers: Worker, reruns: bool = True, metrics: Metrics | None = None) -> Pool:
    made = Pool("m", 10, 60.0, (metrics or Metrics()).model("m", ""), reruns=reruns)
    for worker in workers:
        made.add(worker)
    return made


async def test_a_call_goes_to_another_worker_as_long_as_nothing_has_come() -> None:
    a, b = Worker("a", 2), Worker("b", 2)
    metrics = Metrics()
    served = pool(a, metrics=metrics)
    begun, quiet = Recorder(), Recorder()
    first, second = served.submit(call(), begun), served.submit(call(), quiet)
    served.add(b)
    served.receive(a, [Start(first.id, 200, {}), Progress(second.id)])
    served.remove(a, "was lost", lost=True)
    assert isinstance(begun.error, WorkerDiedError) and quiet.error is None
    assert b.calls == [second.id]
    served.receive(a, [Start(second.id, 500, {})])  # it may have been on its way
    served.receive(b, [Start(second.id, 200, {}), BodyChunk(second.id, b"whole", True)])
    assert quiet.got == [200, (b"whole", True)] and begun.got == [200, (b"", False)]
    await served.wait_idle()
    assert b'djl_rerun_requests_total{model="m",version=""} 1.0' in metrics.render()


async def test_calls_wait_in_front_and_in_order_until_a_worker_comes() -> None:
    a, b = Worker("a", 2), Worker("b", 1)
    served = pool(a)
    flights = [served.submit(call(), Recorder()) for _ in range(3)]
    served.remove(a, "was lost", lost=True)
    assert (served.queued, served.in_flight) == (3, 0)
    served.add(b)
    for flight in flights:
        assert b.calls[-1] == flight.id
        served.receive(b, [BodyChunk(flight.id, b"", True)])
    await served.wait_idle()


async def test_a_call_runs_again_once() -> None:
    a, b, c = Worker("a"), Worker("b"), Worker("c")
    served = pool(a, b)
    client = Recorder()
    served.submit(call(), client)
    served.remove(a, "was lost", lost=True)
    served.add(c)
    served.remove(b, "was lost with its node b", lost=True)
    assert client.error is not None and "was lost with its node b" in client.error.message
    assert c.calls == []


async def test_tokens_of_a_call_that_runs_again_are_counted_once() -> None:
    a, b = Worker("a"), Worker("b")
    served, client = pool(a), Recorder()
    flight = served.submit(call(), client)
    served.receive(a, [UsageReport(flight.id, 100, 0), UsageReport(flight.id, 0, 8)])
    served.remove(a, "was lost", lost=True)
    served.add(b)
    served.receive(b, [UsageReport(flight.id, 100, 0), UsageReport(flight.id, 0, 5), UsageReport(flight.id, 0, 5)])
    reports = [got for got in client.got if isinstance(got, UsageReport)]
    assert [(report.prompt_tokens, report.generated_tokens) for report in reports] == [
        *((100, 0), (0, 8)),
        *((0, 0), (0, 0), (0, 2)),
    ]


async def test_the_dead_and_the_unasked_do_not_run_again() -> None:
    """A worker that has died of itself, and models that have nothing run again."""
    for reruns, lost in ((True, False), (False, True)):
        a, b = Worker("a"), Worker("b")
        served = pool(a, b, reruns=reruns)
        client = Recorder()
        served.submit(call(), client)
        served.remove(a, "was lost", lost=lost)
        assert isinstance(client.error, WorkerDiedError) and b.calls == []


async def test_long_bodies_are_not_kept() -> None:
    a, b = Worker("a"), Worker("b")
    served, client = pool(a, b), Recorder()
    served.submit(msgspec.structs.replace(call(), body=bytes(RERUN_BODY_BYTES + 1)), client)
    served.remove(a, "was lost", lost=True)
    assert isinstance(client.error, WorkerDiedError)


async def test_queries_and_calls_of_batches_run_again_too() -> None:
    a, b = Worker("a", 2, queries=1), Worker("b", 2, queries=1)
    served = pool(a)
    query = served.submit(call(), Recorder(), query=True)
    batch = served.submit_batch(call(), Recorder())
    served.remove(a, "was lost", lost=True)
    served.add(b)
    assert sorted(b.calls) == sorted([query.id, batch.id])
    for flight in (query, batch):
        served.receive(b, [BodyChunk(flight.id, b"", True)])
    assert served.unused


async def test_a_call_that_waits_again_can_be_cancelled() -> None:
    a = Worker("a")
    served = pool(a)
    flight = served.submit(call(), Recorder())
    served.remove(a, "was lost", lost=True)
    served.cancel(flight, "disconnect")
    assert served.unused


async def test_a_worker_in_which_calls_wait_is_crowded() -> None:
    a = Worker("a", 4)
    waits: list[None] = []
    served = Pool("m", 10, 60.0, Metrics().model("m", ""), on_wait=lambda: waits.append(None))
    served.add(a)
    assert served.workers.crowded_since(a) is None
    served.receive(a, [Report(gauges={"waiting_requests": 2})])
    since = served.workers.crowded_since(a)
    served.receive(a, [Report(gauges={"waiting_requests": 1}), Report(gauges={"running_requests": 9})])
    assert since is not None and served.workers.crowded_since(a) == since and len(waits) == 1
    served.receive(a, [Report(gauges={"waiting_requests": 0})])
    assert served.workers.crowded_since(a) is None
