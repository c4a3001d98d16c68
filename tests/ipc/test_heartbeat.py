from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from djl_python.ipc.channel import Channel
from djl_python.ipc.heartbeat import BEATS, Heart, HeartbeatListener
from djl_python.ipc.protocol import AnyMessage, Beat, LogLevel

TIMEOUT_S = 0.1


class Pair:
    """Two connected channels, and what the second has received."""

    def __init__(self) -> None:
        self.received: list[AnyMessage] = []
        self.got = asyncio.Event()
        self.ours = Channel(lambda messages: None, lambda: None)
        self.theirs = Channel(self._receive, lambda: None)

    def _receive(self, messages: list[AnyMessage]) -> None:
        self.received += messages
        self.got.set()

    async def beats(self, number: int) -> None:
        async with asyncio.timeout(10):
            while len(self.received) < number:
                self.got.clear()
                await self.got.wait()


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    made = Pair()
    one, other = socket.socketpair()
    await made.ours.attach(one)
    await made.theirs.attach(other)
    yield made
    made.ours.close()
    made.theirs.close()
    await asyncio.sleep(0)


async def test_a_heart_beats_while_nothing_else_is_sent(pair: Pair) -> None:
    Heart(pair.ours, TIMEOUT_S)
    await pair.beats(3)
    assert pair.received == [Beat()] * 3


async def test_other_frames_are_beats_too(pair: Pair) -> None:
    heart = Heart(pair.ours, TIMEOUT_S)
    for _ in range(20):
        heart.beat()  # as the timer would
        pair.ours.send(LogLevel("info"))
        pair.ours.flush()
    await pair.beats(21)
    assert pair.received[:21] == [Beat(), *[LogLevel("info")] * 20]


async def test_a_heart_tells_of_what_it_depends_on_at_once_and_again(pair: Pair) -> None:
    heart = Heart(pair.ours, TIMEOUT_S)
    heart.set_answering(False)
    heart.set_answering(False)
    await pair.beats(3)
    assert pair.received[:3] == [Beat(False)] * 3


async def test_a_closed_channel_has_no_heart(pair: Pair) -> None:
    Heart(pair.ours, TIMEOUT_S)
    pair.ours.close()
    await asyncio.sleep(2 * TIMEOUT_S)
    assert pair.ours.closed


@pytest.mark.parametrize("beating", [False, True])
async def test_silence_is_what_is_missed(pair: Pair, beating: bool) -> None:
    silences: list[float] = []
    ticked = asyncio.Event()

    def on_tick(silent_s: float) -> None:
        silences.append(silent_s)
        if len(silences) == BEATS + 2:
            ticked.set()

    if beating:
        Heart(pair.ours, TIMEOUT_S / 4)
    listener = HeartbeatListener(pair.theirs, TIMEOUT_S, on_tick)
    async with asyncio.timeout(10):
        await ticked.wait()
    listener.close()
    if not beating:
        assert silences == pytest.approx([TIMEOUT_S / BEATS * (number + 1) for number in range(BEATS + 2)])
    else:
        assert max(silences) < TIMEOUT_S


async def test_a_loop_that_was_held_up_itself_finds_nobody_silent(pair: Pair) -> None:
    silences: list[float] = []
    listener = HeartbeatListener(pair.theirs, TIMEOUT_S, silences.append)
    time.sleep(5 * TIMEOUT_S)  # meanwhile nobody beats
    async with asyncio.timeout(10):
        while not silences:
            await asyncio.sleep(0)
    assert silences == pytest.approx([TIMEOUT_S / BEATS])
    listener.close()
    await asyncio.sleep(2 * TIMEOUT_S / BEATS)
    assert len(silences) == 1
