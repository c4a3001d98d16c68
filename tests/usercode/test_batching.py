from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djl_python.usercode.batching import DynamicBatcher

LONG_MS = 60_000


class Recorder:
    """A batch function that notes its batches, and waits for `gate` where there is one."""

    def __init__(self, gate: asyncio.Event | None = None) -> None:
        self.batches: list[list[str]] = []
        self.gate = gate
        self.entered, self.cancelled = asyncio.Event(), asyncio.Event()

    async def __call__(self, items: Sequence[str]) -> list[str | Exception]:
        self.batches.append(list(items))
        self.entered.set()
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
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


async def test_items_that_wait_for_a_running_batch_go_together() -> None:
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


async def test_only_answers_that_nobody_waits_for_are_discarded() -> None:
    run, discarded = Recorder(asyncio.Event()), list[object]()
    batcher = DynamicBatcher(run, 2, LONG_MS, discarded.append)
    gone, stays = (asyncio.create_task(batcher.submit(item)) for item in "ab")
    await run.entered.wait()
    gone.cancel()
    await asyncio.wait((gone,))
    assert run.gate is not None
    run.gate.set()
    assert await stays == "B"
    assert discarded == ["A"]


async def test_an_answer_that_comes_with_its_callers_cancellation_is_discarded() -> None:
    run, discarded = Recorder(), list[object]()
    batcher = DynamicBatcher(run, 2, LONG_MS, discarded.append)

    async def cancel_the_other() -> None:
        await batcher.submit("a")
        other.cancel()

    first = asyncio.create_task(cancel_the_other())
    other = asyncio.create_task(batcher.submit("b"))
    await asyncio.wait((first, other))
    assert other.cancelled() and discarded == ["B"]


async def test_a_batch_without_callers_is_cancelled_and_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    run = Recorder(asyncio.Event())
    batcher = DynamicBatcher(run, 2, 0)
    gone = [asyncio.create_task(batcher.submit(item)) for item in "ab"]
    await run.entered.wait()
    next_one = asyncio.create_task(batcher.submit("c"))
    for call in gone:
        call.cancel()
    await asyncio.wait_for(run.cancelled.wait(), 5)
    assert run.gate is not None
    run.gate.set()
    assert await next_one == "C"
    assert run.batches == [["a", "b"], ["c"]]
    assert caplog.records == []


async def test_a_bad_item_fails_alone() -> None:
    run = Recorder()
    batcher = DynamicBatcher(run, 3, LONG_MS)
    good, bad, own = (asyncio.create_task(batcher.submit(item)) for item in ("a", "bad", "own"))
    assert await good == "A"
    for failed, why in ((bad, "bad item"), (own, "own")):
        with pytest.raises(ValueError, match=why):
            await failed
    assert run.batches == [["a", "bad", "own"], ["a"], ["bad"], ["own"]]


async def test_a_batcher_without_calls_can_be_closed() -> None:
    await DynamicBatcher(Recorder(), 1, 0).close()


async def test_close_leaves_nobody_waiting() -> None:
    run = Recorder(asyncio.Event())
    batcher = DynamicBatcher(run, 1, 0)
    running, waiting = (asyncio.create_task(batcher.submit(item)) for item in "ab")
    await run.entered.wait()
    await batcher.close()
    for one in (running, waiting):
        with pytest.raises(asyncio.CancelledError):
            await one
    await asyncio.wait_for(run.cancelled.wait(), 5)


@dataclass(frozen=True)
class Caller:
    """What one caller does: turns of the event loop before it calls, and before it leaves, if it does; its answer."""

    comes: int
    leaves: int | None
    fails: str  # "", "batch": whatever it is batched with; "item": its answer is an error

    @property
    def answer(self) -> str:
        return f"ValueError: {self.fails}" if self.fails else "fine"


_CALLERS = st.builds(
    Caller,
    comes=st.integers(0, 12),
    leaves=st.none() | st.none() | st.integers(0, 12),
    fails=st.sampled_from(["", "", "", "batch", "item"]),
)


@given(st.lists(_CALLERS, max_size=12), st.integers(1, 4), st.sampled_from([0, 1]), st.integers(0, 4))
def test_every_caller_gets_its_own_answer_once(
    callers: list[Caller], batch_size: int, max_delay_ms: int, duration: int
) -> None:
    """Whoever comes, leaves and fails when: nobody waits for ever, gets another's answer, or is run again when done."""
    answered: Counter[int] = Counter()
    discarded: list[str] = []

    async def turns(number: int) -> None:
        for _ in range(number):
            await asyncio.sleep(0)

    async def run(items: Sequence[int]) -> list[str | Exception]:
        assert 1 <= len(items) <= batch_size
        await turns(duration)
        if any(callers[item].fails == "batch" for item in items):
            raise ValueError("batch")
        answered.update(items)
        return [ValueError("item") if callers[item].fails == "item" else f"fine {item}" for item in items]

    async def call(batcher: DynamicBatcher[int, str], item: int) -> str:
        await turns(callers[item].comes)
        try:
            answer = await batcher.submit(item)
        except ValueError as error:
            return f"ValueError: {error}"
        assert answer == f"fine {item}"
        return "fine"

    async def leave(task: asyncio.Task[str], after: int) -> None:
        await turns(after)
        task.cancel()

    async def all_of_them() -> None:
        batcher = DynamicBatcher(run, batch_size, max_delay_ms, lambda answer: discarded.append(str(answer)))
        tasks = [asyncio.create_task(call(batcher, item)) for item in range(len(callers))]
        left = [
            asyncio.create_task(leave(task, caller.comes + caller.leaves))
            for task, caller in zip(tasks, callers, strict=True)
            if caller.leaves is not None
        ]
        if tasks:
            await asyncio.wait_for(asyncio.wait([*tasks, *left]), 10)
        for task, caller in zip(tasks, callers, strict=True):
            if task.cancelled():
                assert caller.leaves is not None
            else:
                assert task.result() == caller.answer
        assert all(count == 1 for count in answered.values())
        gone = sum(task.cancelled() for task in tasks)
        assert len(discarded) <= gone
        await batcher.close()

    asyncio.run(all_of_them())
