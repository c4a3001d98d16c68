"""Turns at a model's workers: tenants by their shares, and calls that have to begin within a time."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from djl_python.core.errors import OverloadedError
from djl_python.core.turns.precedence import Precedence
from djl_python.ipc.protocol import BodyChunk, Call
from djl_python.server.models.pool.pool import Pool
from djl_python.server.models.pool.start_rate import StartRate
from tests.server.models.pool.test_pool import Recorder, Worker, call, pool


def of(tenant: str, weight: float = 1.0, priority: int = 0) -> Call:
    return msgspec.structs.replace(call(), precedence=Precedence(tenant, weight, priority))


def end_first(served: Pool, worker: Worker) -> None:
    """The call that the worker has had for longest ends."""
    ended = next(number for number in worker.calls if number not in worker.ended)
    worker.ended.add(ended)
    served.receive(worker, [BodyChunk(ended, b"", True)])


@pytest.fixture
def worker() -> Worker:
    return Worker(capacity=1)


async def test_a_single_call_is_next_whatever_another_tenant_has_queued(worker: Worker) -> None:
    served = pool(worker, queue_size=600)
    for _ in range(500):
        served.submit(of("flood"), Recorder())
    single = served.submit(of("single"), Recorder())
    end_first(served, worker)
    assert worker.calls[-1] == single.id


async def test_calls_are_served_by_weight(worker: Worker) -> None:
    served = pool(worker, queue_size=600)
    gold = {served.submit(of("gold", weight=3.0), Recorder()).id for _ in range(100)}
    for _ in range(100):
        served.submit(of("free"), Recorder())
    for _ in range(100):
        end_first(served, worker)
    assert sum(number in gold for number in worker.calls) == pytest.approx(75, abs=2)


async def test_of_a_tenants_calls_the_urgent_ones_go_first(worker: Worker) -> None:
    served = pool(worker)
    served.submit(of("a"), Recorder())
    late = served.submit(of("a", priority=5), Recorder())
    soon = served.submit(of("a", priority=-5), Recorder())
    end_first(served, worker)
    end_first(served, worker)
    assert worker.calls[-2:] == [soon.id, late.id]


async def test_a_flood_leaves_places_in_the_worker_for_a_tenant_that_has_none() -> None:
    worker = Worker(capacity=16, at_once=8)
    served = pool(worker, queue_size=600)
    for _ in range(100):
        served.submit(of("flood"), Recorder())
    assert len(worker.calls) == 15
    single = served.submit(of("single"), Recorder())
    assert worker.calls[-1] == single.id, "without waiting for one of the flood to end"


async def test_a_call_that_can_not_begin_in_time_is_refused_at_once(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = pool(worker, queue_size=600)
    now = asyncio.get_running_loop().time()
    for _ in range(30):
        served.submit(call(), Recorder())
    for number in range(1, 11):  # one begins every 2 s
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda number=number: now + 2.0 * number)
        end_first(served, worker)
    with pytest.raises(
        OverloadedError, match=r"19 requests go before this one, which would begin in 40\.0 s"
    ) as raised:
        served.submit(call(), Recorder(), begins_within_s=30.0)
    assert raised.value.retry_after_s == 10
    served.submit(call(), Recorder(), begins_within_s=60.0)
    other_tenant = served.submit(of("single"), Recorder(), begins_within_s=10.0)
    assert other_tenant.id, "its turn comes earlier"


async def test_a_call_is_given_up_when_its_time_is_over(worker: Worker) -> None:
    served = pool(worker)
    running, waiting = Recorder(), Recorder()
    served.submit(call(), running)
    served.submit(call(), waiting, begins_within_s=0.01)
    async with asyncio.timeout(5):
        while waiting.error is None:
            await asyncio.sleep(0.005)
    assert isinstance(waiting.error, OverloadedError) and "has not begun" in waiting.error.message
    assert served.queued == 0 and running.error is None


async def test_a_call_that_has_begun_has_all_the_time_it_takes(worker: Worker) -> None:
    served = pool(worker)
    served.submit(call(), Recorder())
    client = Recorder()
    flight = served.submit(call(), client, begins_within_s=0.02)
    end_first(served, worker)
    await asyncio.sleep(0.05)
    assert client.error is None
    served.receive(worker, [BodyChunk(flight.id, b"x", True)])
    assert client.got == [(b"x", True)]


def test_the_time_without_waiting_calls_is_not_counted() -> None:
    rate = StartRate()
    rate.note(0.0, waiting=1)
    rate.note(1.0, waiting=0)
    rate.note(100.0, waiting=1)
    rate.note(101.0, waiting=1)
    assert rate.wait_s(3) == pytest.approx(4.0)
