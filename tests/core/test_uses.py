import asyncio

import pytest

from djl_python.core.uses import Uses


async def test_the_end_waits_for_the_last_use() -> None:
    uses = Uses[str]()
    with uses.of(["a", "b"]):
        with uses.of(["a"]):
            ending = asyncio.create_task(uses.ended("a"))
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not ending.done()
        await uses.ended("c")  # which nobody uses
    await asyncio.wait_for(ending, 5)
    await uses.ended("a")


async def test_a_use_that_fails_has_ended() -> None:
    uses = Uses[int]()
    with pytest.raises(ValueError, match="broken"), uses.of([1, 1]):
        raise ValueError("broken")
    await asyncio.wait_for(uses.ended(1), 5)
