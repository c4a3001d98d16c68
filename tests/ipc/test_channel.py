import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from djl_python.ipc import event_loop, protocol
from djl_python.ipc.channel import Channel
from djl_python.ipc.protocol import AnyMessage, Cancel, Chunk, FrameReader, Report, Status, encode_frame

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.run, event_loop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Both kinds of loop: they differ in when a protocol hears of what."""
    found: Run = request.param
    return found


class End:
    """One end, and what it heard."""

    def __init__(self) -> None:
        self.heard: list[AnyMessage] = []
        self.reads = 0
        self.came = asyncio.Event()
        self.closings = 0
        self.closed = asyncio.Event()
        self.channel = Channel(self._on_messages, self._on_closed)

    def _on_messages(self, messages: list[AnyMessage]) -> None:
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


def test_what_came_before_is_handed_over(run: Run) -> None:
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


def test_what_is_sent_in_one_turn_is_one_frame(run: Run) -> None:
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
            end.channel.send(Chunk(1, bytes(size), False))
        frames: list[list[int]] = []
        while sum(map(len, frames)) < len(sizes):
            (length,) = struct.unpack("<I", await reading.readexactly(4))
            data = await reading.readexactly(length)
            messages = FrameReader().feed(struct.pack("<I", length) + data)
            frames.append([len(message.data) for message in messages if isinstance(message, Chunk)])
        assert frames == [sizes[:2], sizes[2:3], sizes[3:]]
        end.channel.close()
        await asyncio.wait_for(end.closed.wait(), 5)
        writing.close()

    run(scene())


def test_what_goes_along_may_fill_a_frame(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "FULL_FRAME_BYTES", 100)

    async def scene() -> None:
        one, other = await pair()
        one.channel.before_frame = lambda: one.channel.send(Chunk(2, bytes(100), True))
        one.channel.send(Cancel(1))
        while len(other.heard) < 2:
            await asyncio.wait_for(other.came.wait(), 5)
            other.came.clear()
        assert other.heard == [Cancel(1), Chunk(2, bytes(100), True)]
        one.channel.close()
        await asyncio.wait_for(other.closed.wait(), 5)

    run(scene())


def test_what_cannot_be_encoded_costs_nobody_else_anything(run: Run) -> None:
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


def test_what_was_sent_before_the_end_arrives(run: Run) -> None:
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
        end.channel.send(Chunk(1, bytes(8 << 20), True))  # more than the kernel holds
        early, _ = await asyncio.wait((drained,), timeout=0.05)
        reading, writing = await asyncio.open_connection(sock=theirs)
        await reading.readexactly(8 << 20)
        await asyncio.wait_for(drained, 5)
        end.channel.close()
        await asyncio.wait_for(end.closed.wait(), 5)
        writing.close()
        assert not early

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


def test_what_a_read_has_others_send_leaves_with_it_and_no_other_loop_has_to_do_with_it(run: Run) -> None:
    """Each loop has channels of its own: another thread's are none of its business."""

    async def scene() -> None:
        one, other = await pair()
        third, fourth = await pair()
        written: list[str] = []

        def pass_on(messages: list[AnyMessage]) -> None:
            asyncio.get_running_loop().call_soon(lambda: written.append("a turn later"))
            third.channel.send(Cancel(7))

        other.channel._on_messages = pass_on
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
