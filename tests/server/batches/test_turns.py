"""Which owner's batch runs next."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack

import pytest

from djl_python.server.batches.turns import Turns


class Scene:
    """Batches that take turns: each is named by its owner and a number, and runs until it is ended."""

    def __init__(self, most: int) -> None:
        self.running: list[str] = []
        self._turns = Turns(most)
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, *names: str) -> None:
        for name in names:
            self._ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._run(name))
        await asyncio.sleep(0)

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self.tasks[name]
        await asyncio.sleep(0)

    async def _run(self, name: str) -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._turns.turn(name[:-1]))
            self.running.append(name)
            stack.callback(self.running.remove, name)
            await self._ends[name].wait()


async def test_without_keys_they_run_as_they_come() -> None:
    scene = Scene(2)
    await scene.begin("1", "2", "3", "4")
    assert scene.running == ["1", "2"]
    await scene.end("1")
    await scene.end("2")
    assert scene.running == ["3", "4"]


async def test_a_key_whose_batches_wait_has_its_turn_among_keys_that_come_and_go() -> None:
    scene = Scene(1)
    await scene.begin("b0", *(f"a{number}" for number in range(5)), "c0")
    order = []
    for number in range(1, 9):
        (running,) = scene.running
        order.append(running[0])
        await scene.end(running)
        if running[0] != "a":  # the next batch of this key comes when none of it is left
            await scene.begin(f"{running[0]}{number}")
    turns = [index for index, owner in enumerate(order) if owner == "a"]
    assert len(turns) >= 2 and max(after - before for before, after in itertools.pairwise(turns)) <= 3
    for task in scene.tasks.values():
        task.cancel()


async def test_a_batch_waits_for_none_of_another_keys_that_only_wait() -> None:
    scene = Scene(1)
    await scene.begin("a1", "a2", "a3", "b1")
    await scene.end("a1")
    assert scene.running == ["b1"]
    await scene.begin("b2")
    await scene.end("b1")
    await scene.end("a2")
    assert scene.running == ["b2"]


async def test_a_key_leaves_a_turn_for_others() -> None:
    scene = Scene(4)
    await scene.begin("a1", "a2", "a3")
    assert scene.running == ["a1", "a2"]
    await scene.begin("b1", "c1")
    assert scene.running == ["a1", "a2", "b1", "c1"]
    await scene.end("b1")
    assert scene.running == ["a1", "a2", "c1"]


async def test_a_batch_that_is_cancelled_takes_no_turn_and_gives_back_its_own() -> None:
    scene = Scene(1)
    await scene.begin("a1", "b1", "c1")
    scene.tasks["b1"].cancel()
    await scene.end("a1")
    assert scene.running == ["c1"]
    scene.tasks["c1"].cancel()
    with pytest.raises(asyncio.CancelledError):
        await scene.tasks["c1"]
    await scene.begin("d1")
    assert scene.running == ["d1"]
