import asyncio

import pytest

from djl_python.core.errors import ModelLoadError
from djl_python.server.models.operations import Operations, unless


async def test_operations_with_one_key_take_place_in_turn_and_others_side_by_side() -> None:
    operations, may_end = Operations(), asyncio.Event()
    began: list[str] = []

    async def operation(name: str, *, waits: bool = False) -> str:
        began.append(name)
        if waits:
            await may_end.wait()
        return name

    first = operations.begin(("m", ""), operation, "first", waits=True)
    second = operations.begin(("m", ""), operation, "second")
    other = operations.begin(("m", "2"), operation, "other")
    assert await other == "other"
    assert began == ["first", "other"] and not second.done()
    may_end.set()
    assert (await first, await second) == ("first", "second")


async def test_a_failed_operation_lets_the_next_begin() -> None:
    operations = Operations()

    async def fail() -> None:
        raise ModelLoadError("it does not load")

    async def succeed() -> int:
        return 1

    first, second = operations.begin(("m", ""), fail), operations.begin(("m", ""), succeed)
    await operations.wait()
    assert second.result() == 1
    with pytest.raises(ModelLoadError):
        first.result()


async def test_together_they_are_done_when_all_are() -> None:
    operations, may_end = Operations(), asyncio.Event()

    async def operation() -> None:
        await may_end.wait()

    tasks = [operations.begin(("m", version), operation) for version in "12"]
    both = operations.together(tasks)
    may_end.set()
    await both
    assert all(task.done() for task in tasks)
    await operations.wait()


async def test_work_is_cancelled_by_an_event() -> None:
    event, ended = asyncio.Event(), asyncio.Event()

    async def work(result: int) -> int:
        try:
            return result or await asyncio.sleep(600, 1)
        finally:
            ended.set()

    assert await unless(event, work(1), ModelLoadError("too late")) == 1
    ended.clear()
    asyncio.get_running_loop().call_soon(event.set)
    with pytest.raises(ModelLoadError, match="too late"):
        await unless(event, work(0), ModelLoadError("too late"))
    await ended.wait()
    ended.clear()
    with pytest.raises(ModelLoadError, match="too late"):
        await unless(event, work(1), ModelLoadError("too late"))
    assert not ended.is_set()  # it was not begun


async def test_works_own_error_passes() -> None:
    async def work() -> None:
        raise ModelLoadError("of its own")

    with pytest.raises(ModelLoadError, match="of its own"):
        await unless(asyncio.Event(), work(), ModelLoadError("too late"))
