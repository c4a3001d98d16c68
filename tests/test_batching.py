from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from djl_python import Input, Output
from djl_python.batching import DynamicBatcher, join, split
from djl_python.errors import HandlerError

LONG_MS = 60_000


class Recorder:
    """A batch function that notes its batches, and waits for `gate` where there is one."""

    def __init__(self, gate: asyncio.Event | None = None) -> None:
        self.batches: list[list[str]] = []
        self.gate = gate
        self.entered = asyncio.Event()

    async def __call__(self, items: Sequence[str]) -> list[str | Exception]:
        self.batches.append(list(items))
        self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        if "bad" in items:
            raise ValueError("bad item")
        return [ValueError(item) if item == "own" else item.upper() for item in items]


async def test_full_batch_runs_at_once() -> None:
    run = Recorder()
    batcher = DynamicBatcher(run, 3, LONG_MS)
    assert await asyncio.gather(*map(batcher.submit, "abc")) == ["A", "B", "C"]
    assert run.batches == [["a", "b", "c"]]


async def test_delay_is_measured_from_the_first() -> None:
    run = Recorder()
    batcher = DynamicBatcher(run, 3, 20)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    assert await asyncio.gather(*map(batcher.submit, "ab")) == ["A", "B"]
    assert 0.015 < loop.time() - begun < 5
    assert run.batches == [["a", "b"]]
    assert await batcher.submit("later") == "LATER"


async def test_what_waits_while_a_batch_runs_goes_together() -> None:
    run = Recorder(asyncio.Event())
    batcher = DynamicBatcher(run, 2, 0)
    calls = [asyncio.create_task(batcher.submit("a"))]
    await run.entered.wait()
    calls += [asyncio.create_task(batcher.submit(item)) for item in "bcd"]
    await asyncio.sleep(0)
    assert run.gate is not None
    run.gate.set()
    assert await asyncio.gather(*calls) == ["A", "B", "C", "D"]
    assert run.batches == [["a"], ["b", "c"], ["d"]]


async def test_a_cancelled_call_leaves_its_batch_before_it_begins() -> None:
    run = Recorder()
    batcher = DynamicBatcher(run, 2, LONG_MS)
    gone = asyncio.create_task(batcher.submit("gone"))
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert await asyncio.gather(*map(batcher.submit, "ab")) == ["A", "B"]
    assert run.batches == [["a", "b"]]


async def test_a_call_cancelled_in_a_running_batch_does_not_disturb_it() -> None:
    run = Recorder(asyncio.Event())
    batcher = DynamicBatcher(run, 2, LONG_MS)
    gone, stays = (asyncio.create_task(batcher.submit(item)) for item in "ab")
    await run.entered.wait()
    gone.cancel()
    assert run.gate is not None
    run.gate.set()
    assert await stays == "B"


async def test_one_bad_item_fails_alone() -> None:
    run = Recorder()
    batcher = DynamicBatcher(run, 3, LONG_MS)
    good, bad, own = await asyncio.gather(*map(batcher.submit, ("a", "bad", "own")), return_exceptions=True)
    assert good == "A"
    assert isinstance(bad, ValueError) and str(bad) == "bad item"
    assert isinstance(own, ValueError) and str(own) == "own"
    assert run.batches == [["a", "bad", "own"], ["a"], ["bad"], ["own"]]


async def test_close_leaves_nobody_waiting() -> None:
    run = Recorder(asyncio.Event())
    batcher = DynamicBatcher(run, 1, 0)
    running, waiting = (asyncio.create_task(batcher.submit(item)) for item in "ab")
    await run.entered.wait()
    await batcher.close()
    for one in (running, waiting):
        with pytest.raises(asyncio.CancelledError):
            await one


# ------------------------------------------------------------------------------------------------ DJL's form


def item(number: int) -> Input:
    made = Input()
    made.properties = {"content-type": "text/plain", "x-request-id": f"r{number}"}
    made.content.add("q", b"1")
    made.content.add("data", str(number).encode())
    made.body = f"q=1&data={number}".encode()
    return made


def test_join_is_undone_by_get_batches() -> None:
    batch = join([item(0), item(1)])
    assert batch.get_batch_size() == 2
    assert batch.content.get_keys() == ["batch_000.q", "batch_000.data", "batch_001.q", "batch_001.data"]
    assert batch.get_property("batch_001.x-request-id") == "r1"
    assert [one.get_as_string() for one in batch.get_batches()] == ["0", "1"]
    assert [one.request_id for one in batch.get_batches()] == ["r0", "r1"]
    assert [one.body for one in batch.get_batches()] == [b"q=1&data=0", b"q=1&data=1"]


def test_split_by_index_in_any_order() -> None:
    out = Output().add("b", batch_index=1).add({"a": 1}, batch_index=0).add_property("X", "1")
    out.add_property("batch_001.Y", "2")
    first, second = split(out, 2)
    assert (list(first.content), first.content_type) == ([("data", b'{"a":1}')], "application/json")
    assert (list(second.content), second.content_type) == ([("data", b"b")], "text/plain; charset=utf-8")
    assert (first.properties, second.properties) == ({"x": "1"}, {"x": "1", "y": "2"})


def test_split_by_position_and_per_item_codes() -> None:
    first, second = split(Output().add("a").add("b"), 2)
    assert (first.content.values, second.content.values) == ([b"a"], [b"b"])
    good, bad = split(Output().add("a", batch_index=0).error("no", code=400, batch_index=1), 2)
    assert (good.code, bad.code, bad.properties["content-type"]) == (200, 400, "application/json")


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (Output().add("a"), "Batch output size mismatch, expected: 2, actual: 1"),
        (Output().add("a", batch_index=0).add("b", batch_index=0), "two entries for item 0"),
        (Output().add("a", batch_index=0).add("b", batch_index=2), "Unexpected batch output key: batch_002.data"),
        (Output().add_stream_content(iter("ab")), "cannot be streamed"),
        (Output().add("a").add("b").add_property("batch_000.code", "x"), "expected an HTTP status"),
    ],
)
def test_split_says_what_is_wrong(out: Output, message: str) -> None:
    with pytest.raises(HandlerError, match=message):
        split(out, 2)
