"""UserHandler in this process; what needs a worker process is in test_service.py."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from djl_python import Input, Output
from djl_python.config import ModelConfig, ServingSettings
from djl_python.core.errors import ModelLoadError
from djl_python.core.metrics import MetricFamily
from djl_python.handler import Context
from djl_python.worker.thread import HandlerThread
from djl_python.worker.user_handler import UserHandler
from tests.worker.test_answers import Recorded


class Counted:
    """Metrics that nobody reads."""

    def count(self, name: str, amount: float = 1) -> None: ...

    def gauge(self, name: str, value: float) -> None: ...

    def observe(self, name: str, *values: float) -> None: ...

    def engine(self, families: list[MetricFamily]) -> None: ...


def context(**serving: Any) -> Context:
    def ignore(*_: Any) -> None: ...

    config = ModelConfig(name="m", serving=ServingSettings(**serving))
    return Context(
        name="m",
        version="",
        model_dir=Path(),
        config=config,
        metrics=Counted(),
        progress=ignore,
        fail=ignore,
        run=None,  # type: ignore[arg-type]
        properties={"a": "b"},
    )


async def loaded(target: Any, **serving: Any) -> UserHandler:
    handler = UserHandler(target, HandlerThread())
    await handler.load(context(**serving))
    return handler


async def ask(handler: UserHandler, body: bytes = b"x") -> Recorded:
    reply, inputs = Recorded(), Input()
    inputs.content.add("data", body)
    await handler.serve(inputs, reply)
    return reply


async def test_a_function_gets_one_empty_call_with_the_models_properties() -> None:
    calls: list[tuple[bool, dict[str, str]]] = []

    def handle(inputs: Input) -> None:
        calls.append((inputs.is_empty(), dict(inputs.get_properties())))

    handler = await loaded(handle)
    assert calls == [(True, {"a": "b"})]
    await ask(handler)
    assert calls[1][0] is False


async def test_generator_functions_are_run_by_the_empty_call_too() -> None:
    calls: list[str] = []

    def sync(inputs: Input) -> Iterator[str]:
        calls.append("sync")
        yield from ()

    async def asynchronous(inputs: Input) -> AsyncIterator[str]:
        calls.append("async")
        item: str
        for item in ():
            yield item

    await loaded(sync)
    await loaded(asynchronous)
    assert calls == ["sync", "async"]


async def test_a_class_is_made_loaded_and_closed_instead() -> None:
    class Model:
        seen: list[Any] = []  # noqa: RUF012

        async def load(self, ctx: Context) -> None:
            self.seen.append(ctx.name)

        def handle(self, inputs: Input) -> Output:
            self.seen.append(threading.current_thread() is threading.main_thread())
            return Output().add("x")

        def close(self) -> None:
            self.seen.append("closed")

    handler = await loaded(Model)
    assert (await ask(handler)).pieces == [b"x"]
    await handler.close()
    assert Model.seen == ["m", False, "closed"]


async def test_an_object_with_an_async_call_runs_in_the_loop() -> None:
    class Model:
        async def __call__(self, inputs: Input) -> Output:
            return Output().add_as_json(threading.current_thread() is threading.main_thread())

    handler = await loaded(Model())
    assert (await ask(handler)).pieces == [b"true"]
    assert handler.capacity == 1000


async def test_a_plain_function_may_return_a_coroutine() -> None:
    async def answer(inputs: Input) -> Output:
        return Output().add("x")

    handler = await loaded(lambda inputs: answer(inputs))
    assert (await ask(handler)).pieces == [b"x"]


async def test_capacity() -> None:
    def handle(inputs: Input) -> None: ...

    async def asynchronous(inputs: Input) -> None: ...

    assert (await loaded(handle)).capacity == 1
    assert (await loaded(handle, batch_size=4)).capacity == 4
    assert (await loaded(asynchronous, job_queue_size=7)).capacity == 7
    assert (await loaded(asynchronous, job_queue_size=5000)).capacity == 1024


async def test_a_sync_handler_answers_one_call_at_a_time_its_stream_included() -> None:
    order: list[str] = []

    def handle(inputs: Input) -> Output | None:
        if inputs.is_empty():
            return None
        name = inputs.get_as_string()

        def pieces() -> Iterator[str]:
            for step in "12":
                order.append(name + step)
                yield step

        return Output().add_stream_content(pieces())

    handler = await loaded(handle)
    await asyncio.gather(*(ask(handler, name) for name in (b"a", b"b", b"c")))
    assert order == ["a1", "a2", "b1", "b2", "c1", "c2"]


async def test_a_single_call_of_a_batching_model_may_stream() -> None:
    def handle(inputs: Input) -> Output | None:
        return None if inputs.is_empty() else Output().add_stream_content(iter("ab"))

    handler = await loaded(handle, batch_size=2, max_batch_delay_ms=0)
    assert (await ask(handler)).pieces == [b'{"outputs":"a"}\n', b'{"outputs":"b"}\n']
    await handler.close()


@pytest.mark.parametrize(("key", "batch_size"), [("batch_0_Content-Type", 1), ("batch_000.content-type", 4)])
async def test_a_single_call_may_be_answered_as_the_first_of_a_batch(key: str, batch_size: int) -> None:
    """Handlers of DJL's loop over `get_batches`, whether there is a batch or not."""

    def handle(inputs: Input) -> Output | None:
        outputs = Output()
        for index, item in enumerate([] if inputs.is_empty() else inputs.get_batches()):
            outputs.add(item.get_as_string(), key="data", batch_index=index)
        return None if inputs.is_empty() else outputs.add_property(key, "text/csv")

    handler = await loaded(handle, batch_size=batch_size)
    reply = await ask(handler)
    assert (reply.status, reply.headers, reply.pieces) == (200, {"content-type": "text/csv"}, [b"x"])
    await handler.close()


async def test_none_for_a_batch_is_204_for_each_and_its_finalizer_runs_once() -> None:
    finished: list[int] = []

    def handle(inputs: Input) -> Output | None:
        if inputs.is_empty() or b"none" in inputs.content.values:
            return None
        out = Output().finalize(finished.append, 1)
        for index in range(inputs.get_batch_size()):
            out.add("x", batch_index=index)
        return out

    handler = await loaded(handle, batch_size=2, max_batch_delay_ms=60_000)
    nothing = await asyncio.gather(ask(handler, b"none"), ask(handler, b"y"))
    assert [reply.status for reply in nothing] == [204, 204]
    await asyncio.gather(ask(handler, b"x"), ask(handler, b"y"))
    await handler.close()
    async with asyncio.timeout(10):
        while not finished:  # which the handler's thread sees to
            await asyncio.sleep(0.001)
    assert finished == [1]


async def test_a_batch_answered_with_an_error_is_run_singly() -> None:
    sizes: list[int] = []

    def handle(inputs: Input) -> Output | None:
        if inputs.is_empty():
            return None
        sizes.append(inputs.get_batch_size())
        if b"bad" in inputs.content.values:
            return Output().error("caught it myself")
        return Output().add("fine")

    handler = await loaded(handle, batch_size=2, max_batch_delay_ms=60_000)
    bad, good = await asyncio.gather(ask(handler, b"bad"), ask(handler, b"good"))
    assert (bad.status, good.status, sizes) == (424, 200, [2, 1, 1])


async def test_an_error_as_the_first_answer_fails_the_load() -> None:
    with pytest.raises(ModelLoadError, match="code 507: no memory"):
        await loaded(lambda inputs: Output(code=507, message="no memory"))


@pytest.mark.parametrize("batch_size", [1, 2])
async def test_a_forgotten_return_is_told_once(batch_size: int, caplog: pytest.LogCaptureFixture) -> None:
    def handle(inputs: Input) -> None:
        for item in inputs.get_batches():
            Output().add(item.get_as_bytes() or b"")

    handler = await loaded(handle, batch_size=batch_size, max_batch_delay_ms=0)
    assert caplog.text == "", "the first call has no content: there is nothing to return"
    assert [(await ask(handler)).status for _ in range(2)] == [204, 204]
    assert caplog.text.count("handle() returned None for a request that has content, which is answered with 204") == 1
