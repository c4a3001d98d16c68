from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

from djl_python import Output
from djl_python.core.errors import HandlerError
from djl_python.worker.thread import HandlerThread


async def test_results_errors_and_order() -> None:
    thread = HandlerThread()
    names = await asyncio.gather(*(thread.run((), threading.current_thread) for _ in range(3)))
    assert len({name.ident for name in names}) == 1
    assert names[0] is not threading.main_thread()
    with pytest.raises(ZeroDivisionError):
        await thread.run((), lambda: 1 // 0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await thread.run((), next, iter(()))
    with pytest.raises(HandlerError, match=r"sys\.exit"):
        await thread.run((), exec, "raise SystemExit(1)")


async def test_released_knows_whose_function_is_running() -> None:
    thread = HandlerThread()
    begun, go = threading.Event(), threading.Event()
    owner, other = object(), object()

    def block() -> None:
        begun.set()
        go.wait()

    running = asyncio.create_task(thread.run((owner,), block))
    queued = asyncio.create_task(thread.run((other,), block))
    await asyncio.to_thread(begun.wait)
    running.cancel()
    queued.cancel()
    await asyncio.wait({running, queued})
    assert thread.busy
    assert await thread.released(other, 0)
    assert not await thread.released(owner, 0.01)
    go.set()
    assert await thread.released(owner, 10)
    assert await thread.run((), int) == 0  # the queued one is gone


async def test_a_clean_up_holds_whoever_waits_behind_it_and_nobody_else() -> None:
    thread = HandlerThread()
    begun, go = threading.Event(), threading.Event()
    owner, other = object(), object()

    def clean() -> None:
        begun.set()
        go.wait()

    thread.post(clean)
    await asyncio.to_thread(begun.wait)
    queued = asyncio.create_task(thread.run((owner,), int))
    await asyncio.sleep(0)
    queued.cancel()
    await asyncio.wait({queued})
    assert await thread.released(other, 0)
    assert not await thread.released(owner, 0.01)
    go.set()
    assert await thread.released(owner, 10)
    assert await thread.run((), int) == 0


async def test_an_output_that_comes_with_its_cancellation_is_finalized() -> None:
    thread = HandlerThread()
    begun, go = threading.Event(), threading.Event()
    owner = object()
    finished: list[int] = []

    def answer() -> Output:
        begun.set()
        go.wait()
        return Output().finalize(finished.append, 1)

    async def cancel_at_its_end() -> None:
        await thread.released(owner, None)
        call.cancel()

    call = asyncio.create_task(thread.run((owner,), answer))
    await asyncio.to_thread(begun.wait)
    cancelling = asyncio.create_task(cancel_at_its_end())
    await asyncio.sleep(0)
    go.set()
    await asyncio.wait((call, cancelling))
    assert call.cancelled()
    await thread.run((), int)  # after what was posted
    assert finished == [1]


async def test_the_end_waits_for_a_clean_up() -> None:
    thread = HandlerThread()
    begun, go = threading.Event(), threading.Event()
    cleaned: list[bool] = []

    def clean() -> None:
        begun.set()
        cleaned.append(go.wait(10))

    thread.post(clean)
    await asyncio.to_thread(begun.wait)
    assert not thread.busy
    threading.Timer(0.05, go.set).start()
    thread.close()
    assert cleaned == [True]


async def test_iterate_closes_the_iterator_in_the_thread() -> None:
    thread = HandlerThread()
    closed: list[int | None] = []

    def numbers() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(threading.current_thread().ident)

    assert [item async for item in thread.iterate((), [1, 2])] == [1, 2]
    items = thread.iterate((), numbers())
    assert await anext(items) == 1
    await items.aclose()  # type: ignore[attr-defined]
    assert (await thread.run((), threading.current_thread)).ident == closed[0]


async def test_an_error_of_a_posted_function_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    thread = HandlerThread()
    with caplog.at_level(logging.ERROR):
        thread.post(lambda: 1 // 0)
        await thread.run((), int)
        await thread.run((), int)
    assert "clean-up failed" in caplog.text and "ZeroDivisionError" in caplog.text
