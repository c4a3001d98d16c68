import asyncio

import pytest

from djl_python.core.errors import ParameterError, ServingError, WorkerDiedError
from djl_python.ipc.protocol import AdapterChange, Done
from djl_python.ipc.replies import Replies


def change(number: int) -> AdapterChange:
    return AdapterChange(number, "register", "a", "/a")


async def test_each_gets_its_own_answer() -> None:
    replies, sent = Replies(), list[int]()
    first = asyncio.create_task(replies.to(change(1), lambda: sent.append(1)))
    second = asyncio.create_task(replies.to(change(2), lambda: sent.append(2)))
    await asyncio.sleep(0)
    assert sent == [1, 2]
    replies.answered(Done(2, ids=[5, 6]))
    replies.answered(Done(2, ids=[7]))  # nobody waits for a second one
    replies.answered(Done(1, error="no", error_kind=ParameterError.kind))
    assert await second == [5, 6]
    with pytest.raises(ParameterError, match=r"^no$"):
        await first
    replies.answered(Done(1))


async def test_a_cancelled_wait_ends_and_others_hear_of_the_workers_death() -> None:
    replies = Replies()
    tasks = [asyncio.create_task(replies.to(change(number), lambda: None)) for number in (1, 2, 3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    replies.answered(Done(2))
    replies.fail(lambda: WorkerDiedError("gone"))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in results] == [asyncio.CancelledError, list, WorkerDiedError]


async def test_a_request_that_can_not_be_sent_is_not_waited_for() -> None:
    def fail() -> None:
        raise ServingError("too long")

    with pytest.raises(ServingError, match="too long"):
        await Replies().to(change(1), fail)
