import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from djl_python.ipc import channel, event_loop, framing
from djl_python.ipc.channel import Channel
from djl_python.ipc.framing import FrameReader, encode_frame
from djl_python.ipc.protocol import AnyMessage, BodyChunk, Cancel, Report, Status

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.run, event_loop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Both kinds of loop: they differ in when a protocol hears of what."""
    param: Run = request.param
    return param


class End:
    """One end, and what it heard."""

    def __init__(self) -> None:
        self.heard: list[AnyMessage] = []
        self.reads = 0
        self.came = asyncio.Event()
        self.closings = 0
        self.closed = asyncio.Event()
        self.hear: Callable[[list[AnyMessage]], None] = self._hear
        self.channel = Channel(lambda messages: self.hear(messages), self._on_closed)

    def _hear(self, messages: list[AnyMessage]) -> None:
        self.reads += 1
        self.heard += messages
        self.came.set()

    def _on_closed(self) -> None:
        self.closings += 1
        self.closed.set()


async def pair() -> tuple[End, End]:
    one, other = End(), End()
    for end, sock in zip((one, other), socket.socketpair(), strict=True):
        await end.channel.attach(sock)
    return one, other


def test_messages_from_before_the_attachment_are_delivered(run: Run) -> None:
    async def scene() -> None:
        ours, theirs = socket.socketpair()
        theirs.sendall(encode_frame([Cancel(1)]))
        end = End()
        await end.channel.attach(ours)
        await asyncio.wait_for(end.came.wait(), 5)
        assert end.heard == [Cancel(1)]
        theirs.close()
        await asyncio.wait_for(end.closed.wait(), 5)

    run(scene())


def test_messages_of_a_turn_leave_in_the_same_frame(run: Run) -> None:
    async def scene() -> None:
        one, other = await pair()
        one.channel.send(Cancel(1))
        one.channel.send(Cancel(2))
        await asyncio.wait_for(other.came.wait(), 5)
        assert (other.heard, other.reads) == ([Cancel(1), Cancel(2)], 1)
        one.channel.close()
        await asyncio.wait_for(other.closed.wait(), 5)

    run(scene())


def test_much_that_is_sent_in_one_turn_is_several_frames(run: Run) -> None:
    """A reader refuses a frame that is too long, and a queue of requests is sent in one turn."""
    sizes = [10 << 20, 10 << 20, 40 << 20, 1, 10 << 20]

    async def scene() -> None:
        ours, theirs = socket.socketpair()
        end = End()
        await end.channel.attach(ours)
        reading, writing = await asyncio.open_connection(sock=theirs)
        for size in sizes:
            end.channel.send(BodyChunk(1, bytes(size), False))
        frames: list[list[int]] = []
        while sum(map(len, frames)) < len(sizes):
            (length,) = struct.unpack("<I", await reading.readexactly(4))
            data = await reading.readexactly(length)
            messages = FrameReader().feed(struct.pack("<I", length) + data)
            frames.append([len(message.data) for message in messages if isinstance(message, BodyChunk)])
        assert frames == [sizes[:2], sizes[2:3], sizes[3:]]
        end.channel.close()
        await asyncio.wait_for(end.closed.wait(), 5)
        writing.close()

    run(scene())


def test_messages_added_before_a_frame_may_fill_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "FULL_FRAME_BYTES", 100)

    async def scene() -> None:
        one, other = await pair()
        one.channel.before_frame = lambda: one.channel.send(BodyChunk(2, bytes(100), True))
        one.channel.send(Cancel(1))
        while len(other.heard) < 2:
            await asyncio.wait_for(other.came.wait(), 5)
            other.came.clear()
        assert other.heard == [Cancel(1), BodyChunk(2, bytes(100), True)]
        one.channel.close()
        await asyncio.wait_for(other.closed.wait(), 5)

    run(scene())


def test_a_message_that_can_not_be_encoded_costs_no_other_message(run: Run) -> None:
    async def scene() -> None:
        one, other = await pair()
        for wrong in (Cancel(1 << 64), Status("failed", "caf\udce9"), Report(gauges={"x": object()})):  # type: ignore[dict-item]
            one.channel.send(Cancel(1))
            with pytest.raises((OverflowError, TypeError, ValueError)):
                one.channel.send(wrong)
            one.channel.send(Cancel(2))
            await asyncio.wait_for(other.came.wait(), 5)
            assert other.heard == [Cancel(1), Cancel(2)]
            other.heard.clear()
            other.came.clear()
            with pytest.raises((OverflowError, TypeError, ValueError)):  # nothing else is waiting
                one.channel.send(wrong)
        one.channel.close()
        await asyncio.wait_for(other.closed.wait(), 5)

    run(scene())


def test_messages_sent_before_the_close_arrive(run: Run) -> None:
    async def scene() -> None:
        one, other = await pair()
        one.channel.send(Cancel(1))
        one.channel.close()
        await asyncio.wait_for(other.closed.wait(), 5)
        assert other.heard == [Cancel(1)]

    run(scene())


def test_draining_takes_until_the_other_end_has_read(run: Run) -> None:
    async def scene() -> None:
        ours, theirs = socket.socketpair()
        end = End()
        await end.channel.attach(ours)
        drained = asyncio.create_task(end.channel.drain())
        end.channel.send(BodyChunk(1, bytes(8 << 20), True))  # more than the kernel holds
        early, _ = await asyncio.wait((drained,), timeout=0.05)
        reading, writing = await asyncio.open_connection(sock=theirs)
        await reading.readexactly(8 << 20)
        await asyncio.wait_for(drained, 5)
        end.channel.close()
        await asyncio.wait_for(end.closed.wait(), 5)
        writing.close()
        assert not early

    run(scene())


@pytest.mark.parametrize("closed", [False, True])
def test_room_is_waited_for_until_the_other_end_reads_or_closes(
    run: Run, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    monkeypatch.setattr(channel, "UNSENT_BYTES", 1 << 20)

    async def scene() -> None:
        ours, theirs = socket.socketpair()
        end = End()
        await end.channel.attach(ours)
        end.channel.send(BodyChunk(1, b"", False))
        await asyncio.wait_for(end.channel.room(), 5)
        end.channel.send(BodyChunk(1, bytes(8 << 20), False))
        waiting = asyncio.create_task(end.channel.room())
        assert not (await asyncio.wait({waiting}, timeout=0.05))[0]
        if not closed:
            reading = End()
            await reading.channel.attach(theirs)
        else:
            theirs.close()
        await asyncio.wait_for(waiting, 5)
        end.channel.close()
        await asyncio.wait_for(end.closed.wait(), 5)
        if not closed:
            await asyncio.wait_for(reading.closed.wait(), 5)

    run(scene())


def test_the_end_is_heard_once_and_nothing_is_sent_after_it(run: Run) -> None:
    async def scene() -> None:
        one, other = await pair()
        one.channel.close()
        await asyncio.wait_for(asyncio.gather(one.closed.wait(), other.closed.wait()), 5)
        other.channel.send(Cancel(1))
        other.channel.close()
        await asyncio.sleep(0)
        assert (one.closings, other.closings) == (1, 1)
        assert not one.heard

    run(scene())


def test_messages_sent_while_reading_leave_after_the_read_in_the_same_loop_only(run: Run) -> None:
    """Each loop has channels of its own: another thread's are none of its business."""

    async def scene() -> None:
        one, other = await pair()
        third, fourth = await pair()
        written: list[str] = []

        def pass_on(messages: list[AnyMessage]) -> None:
            asyncio.get_running_loop().call_soon(lambda: written.append("a turn later"))
            third.channel.send(Cancel(7))

        other.hear = pass_on
        third.channel.before_frame = lambda: written.append("sent")
        one.channel.send(Cancel(1))
        await asyncio.wait_for(fourth.came.wait(), 5)
        for end in (one, other, third, fourth):
            end.channel.close()
        await asyncio.wait_for(asyncio.gather(other.closed.wait(), fourth.closed.wait()), 5)
        assert fourth.heard == [Cancel(7)] and written == ["sent", "a turn later"]

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(run, scene()) for _ in range(8)]:
            done.result()
