from __future__ import annotations

import asyncio
import math
import socket
import threading
from collections.abc import Callable

import pytest

from djl_python.ipc.channel import Channel
from djl_python.ipc.protocol import AnyMessage, BodyChunk, Report, Start
from djl_python.worker.reply import MAX_UNREAD_BYTES, REPORT_WITHIN_S, ChannelMetrics, ChannelReply


class Ends:
    """A channel and what arrives at its other end, frame by frame."""

    def __init__(self) -> None:
        self.frames: list[list[AnyMessage]] = []
        self.arrived = asyncio.Event()

    async def open(self) -> Channel:
        ours, theirs = socket.socketpair()
        self.theirs = Channel(self._on_messages, lambda: None)
        await self.theirs.attach(theirs)
        self.ours = Channel(lambda _: None, lambda: None)
        await self.ours.attach(ours)
        return self.ours

    async def frame(self) -> list[AnyMessage]:
        await asyncio.wait_for(self.arrived.wait(), 10)
        self.arrived.clear()
        return self.frames[-1]

    async def close(self) -> None:
        self.ours.close()
        self.theirs.close()
        await asyncio.sleep(0)

    def _on_messages(self, messages: list[AnyMessage]) -> None:
        self.frames.append(messages)
        self.arrived.set()


def _nothing() -> None:
    """An answer that ends without consequences."""


async def test_a_failed_start_leaves_the_reply_unstarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """So whoever hears of it can still answer with an error."""
    ends = Ends()
    reply = ChannelReply(await ends.open(), 5, "r", _nothing)
    with pytest.raises(ValueError, match="surrogates"):
        reply.start(200, {"name": "caf\udce9"})
    assert not reply.started
    reply.start(424, {})
    with monkeypatch.context() as patch:
        patch.setattr("djl_python.ipc.framing.MAX_FRAME_BYTES", 100)
        for send in (reply.write, reply.finish):
            with pytest.raises(ValueError, match="more than can be passed on"):
                send(bytes(100))
    assert not reply.finished
    reply.finish(b"error")
    assert await ends.frame() == [Start(5, 424, {"x-request-id": "r"}), BodyChunk(5, b"error", True)]
    await ends.close()


async def test_reply_in_one_frame() -> None:
    ends = Ends()
    reply = ChannelReply(await ends.open(), 5, "r", _nothing)
    reply.start(200, {"Content-Type": "a/b"})
    reply.write(b"1")
    reply.write(b"")
    reply.finish(b"2")
    reply.finish(b"ignored")
    reply.write(b"ignored")
    reply.start(500, {})
    assert (reply.started, reply.finished, reply.headers["content-type"]) == (True, True, "a/b")
    assert await ends.frame() == [
        Start(5, 200, {"x-request-id": "r", "content-type": "a/b"}),
        BodyChunk(5, b"1", False),
        BodyChunk(5, b"2", True),
    ]
    await ends.close()


async def test_a_piece_that_keeps_alive_says_so() -> None:
    ends = Ends()
    reply = ChannelReply(await ends.open(), 5, "r", _nothing)
    with pytest.raises(RuntimeError, match="must be started"):
        reply.keep_alive(b":")
    reply.start(200, {})
    reply.keep_alive(b":")
    reply.finish()
    reply.keep_alive(b"ignored")
    assert (await ends.frame())[1:] == [BodyChunk(5, b":", False, keep_alive=True), BodyChunk(5, b"", True)]
    await ends.close()


async def test_misuse_is_an_error_and_an_abandoned_reply_is_silent() -> None:
    ends = Ends()
    channel = await ends.open()
    reply = ChannelReply(channel, 5, "r", _nothing)
    misuses: list[Callable[[], None]] = [lambda: reply.write(b"x"), lambda: reply.finish()]
    for misuse in misuses:
        with pytest.raises(RuntimeError, match="must be started"):
            misuse()
    reply.start(200, {})
    with pytest.raises(RuntimeError, match="only once"):
        reply.start(200, {})
    reply.abandon()
    reply.write(b"x")
    reply.finish()
    assert await ends.frame() == [Start(5, 200, {"x-request-id": "r"})]
    await ends.close()


@pytest.mark.parametrize(
    ("misuse", "error", "message"),
    [
        (lambda reply: reply.start(200, {"x-a": 5}), TypeError, "header 'x-a' is 5, expected str"),
        (lambda reply: reply.start("200", {}), TypeError, "status is '200', expected an int"),
        (lambda reply: reply.start(0, {}), ValueError, "from 200 to 599"),
        (lambda reply: (reply.start(200, {}), reply.write("x")), TypeError, "is str, expected bytes"),
        (lambda reply: (reply.start(200, {}), reply.finish("x")), TypeError, "is str, expected bytes"),
    ],
)
async def test_misuses_of_a_reply_are_refused(
    misuse: Callable[[ChannelReply], None], error: type[Exception], message: str
) -> None:
    ends = Ends()
    with pytest.raises(error, match=message):
        misuse(ChannelReply(await ends.open(), 5, "r", _nothing))
    await ends.close()


@pytest.mark.parametrize("send", [ChannelReply.write, ChannelReply.keep_alive])
async def test_a_stream_waits_until_its_client_has_taken_most_of_it(
    send: Callable[[ChannelReply, bytes], None],
) -> None:
    ends = Ends()
    reply = ChannelReply(await ends.open(), 5, "r", _nothing)
    reply.start(200, {})
    send(reply, bytes(MAX_UNREAD_BYTES))
    await reply.drain()
    send(reply, b"xy")
    waiting = asyncio.create_task(reply.drain())
    reply.taken(1)
    await asyncio.sleep(0)
    assert not waiting.done()
    reply.taken(1)
    await waiting
    await ends.close()


async def test_metrics_leave_together_from_any_thread() -> None:
    ends = Ends()
    metrics = ChannelMetrics(await ends.open())
    metrics.count("a")
    metrics.count("a", 2)
    metrics.gauge("g", 1)
    metrics.gauge("g", 4)
    metrics.observe("h", 0.5)
    metrics.observe("h", 1.5)
    assert await ends.frame() == [Report(gauges={"g": 4}, counts={"a": 3}, observations={"h": [0.5, 1.5]})]
    await asyncio.to_thread(metrics.count, "b")
    assert await ends.frame() == [Report(counts={"b": 1})]
    await ends.close()


@pytest.mark.parametrize(
    ("misuse", "error"),
    [
        (lambda metrics: metrics.count("a", -5), ValueError),
        (lambda metrics: metrics.count("a", math.nan), ValueError),
        (lambda metrics: metrics.count("a", math.inf), ValueError),
        (lambda metrics: metrics.count("a", "many"), ValueError),
        (lambda metrics: metrics.count(5), TypeError),
        (lambda metrics: metrics.count("\udce9"), ValueError),
        (lambda metrics: metrics.gauge(None, 1), TypeError),
        (lambda metrics: metrics.gauge("a", None), TypeError),
        (lambda metrics: metrics.observe(b"a", 1), TypeError),
        (lambda metrics: metrics.observe("a", 1, math.nan), ValueError),
    ],
)
async def test_a_wrong_number_is_the_callers_error_and_is_not_sent(
    misuse: Callable[[ChannelMetrics], None], error: type[Exception]
) -> None:
    ends = Ends()
    metrics = ChannelMetrics(await ends.open())
    with pytest.raises(error):
        misuse(metrics)
    metrics.count("b")
    assert await ends.frame() == [Report(counts={"b": 1})]
    await ends.close()


async def test_metrics_that_are_wanted_now_leave_now() -> None:
    ends = Ends()
    channel = await ends.open()
    metrics = ChannelMetrics(channel)
    metrics.flush()
    metrics.count("a")
    metrics.flush()
    channel.send(BodyChunk(5, b"x", True))
    assert await ends.frame() == [Report(counts={"a": 1}), BodyChunk(5, b"x", True)], "and nothing before"
    await asyncio.sleep(1.5 * REPORT_WITHIN_S)
    assert len(ends.frames) == 1
    await ends.close()


async def test_metrics_of_another_thread_may_leave_before_the_loop_hears_of_them() -> None:
    ends = Ends()
    metrics = ChannelMetrics(await ends.open())
    thread = threading.Thread(target=metrics.count, args=("a",))
    thread.start()
    thread.join()
    metrics.flush()
    assert await ends.frame() == [Report(counts={"a": 1})]
    await asyncio.sleep(1.5 * REPORT_WITHIN_S)
    metrics.count("b")
    assert await ends.frame() == [Report(counts={"b": 1})]
    await ends.close()


async def test_metrics_go_along_with_a_frame_if_the_last_did_not_leave_just_now() -> None:
    ends = Ends()
    channel = await ends.open()
    metrics = ChannelMetrics(channel)
    metrics.count("a")
    channel.send(BodyChunk(5, b"x", False))
    assert await ends.frame() == [BodyChunk(5, b"x", False), Report(counts={"a": 1})]
    metrics.count("b")
    channel.send(BodyChunk(5, b"y", False))
    assert await ends.frame() == [BodyChunk(5, b"y", False)]
    assert await ends.frame() == [Report(counts={"b": 1})]
    await ends.close()


async def test_metrics_go_along_with_the_end_of_an_answer() -> None:
    """They would be asked for and sent in a frame of their own otherwise."""
    ends = Ends()
    channel = await ends.open()
    metrics = ChannelMetrics(channel)
    reply = ChannelReply(channel, 5, "r", metrics.call_ends)
    metrics.count("a")
    reply.start(200, {})
    assert (await ends.frame())[1:] == [Report(counts={"a": 1})]
    metrics.count("b")
    reply.finish(b"x")
    assert await ends.frame() == [BodyChunk(5, b"x", True), Report(counts={"b": 1})]
    metrics.count("c")
    channel.send(BodyChunk(6, b"z", False))
    assert await ends.frame() == [BodyChunk(6, b"z", False)], "the next waits again"
    await ends.close()


async def test_messages_sent_while_a_frame_is_handled_leave_at_once() -> None:
    """The engine's step comes in at one channel, its texts leave through another, in one frame."""
    right = Ends()
    out = await right.open()

    def relay(messages: list[AnyMessage]) -> None:
        for message in messages:
            out.send(message)
        asyncio.get_running_loop().call_soon(lambda: out.send(BodyChunk(9, b"a turn later", True)))

    ours, theirs = socket.socketpair()
    source = Channel(lambda _: None, lambda: None)
    await source.attach(theirs)
    sink = Channel(relay, lambda: None)
    await sink.attach(ours)
    source.send(BodyChunk(1, b"x", False))
    source.send(BodyChunk(2, b"y", False))
    while sum(map(len, right.frames)) < 3:
        await asyncio.wait_for(right.frame(), 10)
    assert [len(frame) for frame in right.frames] in ([2, 1], [3])  # two frames, which may be read together
    source.close()
    sink.close()
    await right.close()
