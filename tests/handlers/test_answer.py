"""A quiet stream is kept alive by one timer; everything else waits for nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from djl_python.core.errors import HandlerError
from djl_python.core.types import Delta, Finish, FinishReason
from djl_python.handlers.answer import TextAnswer
from tests.handlers.harness import FakeReply, PlainFormatter

FINISH = Finish(reason=FinishReason.EOS, text="", prompt="", prompt_tokens=1, generated_tokens=1)


class Reply(FakeReply):
    """Tells when it is kept alive."""

    def __init__(self) -> None:
        super().__init__()
        self.kept_alive = asyncio.Event()

    def keep_alive(self, data: bytes) -> None:
        super().keep_alive(data)
        self.kept_alive.set()


async def test_a_quiet_stream_is_kept_alive() -> None:
    reply = Reply()
    answer = TextAnswer(PlainFormatter(stream=True), reply, 1, keep_alive_s=0.01)
    waiting = asyncio.create_task(answer.wait())
    for _ in range(3):
        reply.kept_alive.clear()
        await reply.kept_alive.wait()
    assert reply.status == 200
    assert reply.body == b"still here\n" * 3
    answer.write(Delta(text="x", finish=FINISH))
    await waiting
    assert reply.finished
    reply.kept_alive.clear()
    await asyncio.sleep(0.05)
    assert not reply.kept_alive.is_set()


async def test_a_busy_stream_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does each of its tokens cost a timer."""
    loop, timers = asyncio.get_running_loop(), list[float]()
    call_at = loop.call_at

    def counted(when: float, *given: Any, **named: Any) -> asyncio.TimerHandle:
        timers.append(when)
        return call_at(when, *given, **named)

    monkeypatch.setattr(loop, "call_at", counted)  # which `call_later` calls, too
    reply = Reply()
    answer = TextAnswer(PlainFormatter(stream=True), reply, 1, keep_alive_s=60)
    waiting = asyncio.create_task(answer.wait())
    await asyncio.sleep(0)
    before = len(timers)
    for _ in range(3):
        answer.write(Delta(text="x"))
    assert before and len(timers) == before
    answer.write(Delta(finish=FINISH))
    await waiting
    assert b"still here" not in reply.body


async def test_an_answer_that_is_not_streamed_is_never_begun_early() -> None:
    reply = Reply()
    answer = TextAnswer(PlainFormatter(stream=False), reply, 1, keep_alive_s=0.0)
    waiting = asyncio.create_task(answer.wait())
    await asyncio.sleep(0)
    assert not reply.started
    answer.write(Delta(text="x", finish=FINISH))
    await waiting
    assert len(reply.pieces) == 1


async def test_the_last_finish_ends_it() -> None:
    reply = Reply()
    answer = TextAnswer(PlainFormatter(stream=True), reply, 2)
    answer.write(Delta(choice=1, finish=FINISH))
    assert not answer.done()
    answer.write(Delta(choice=0, finish=FINISH))
    assert answer.done() and reply.finished
    await answer.wait()


@pytest.mark.parametrize(
    ("error", "raised"),
    [(StopIteration(), RuntimeError), (SystemExit(1), HandlerError), (KeyboardInterrupt(), HandlerError)],
)
async def test_an_error_of_a_callback_fails_the_answer(error: BaseException, raised: type[Exception]) -> None:
    answer = TextAnswer(PlainFormatter(stream=True), FakeReply(), 1)
    answer.fail(error)
    assert answer.done()
    with pytest.raises(raised):
        await answer.wait()


async def test_a_failure_after_the_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    answer = TextAnswer(PlainFormatter(stream=True), FakeReply(), 1)
    answer.fail(ValueError("the first"))
    answer.fail(KeyError("the second"))
    with pytest.raises(ValueError, match="the first"):
        await answer.wait()
    (record,) = caplog.records
    assert record.exc_info and isinstance(record.exc_info[1], KeyError)
