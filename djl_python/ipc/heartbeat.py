"""Heartbeats: whether the process at the other end of a channel still does its work.

A process whose loop runs sends a frame about once a second, a `Beat` if it has nothing else to say. Runs in the event
loops of workers, which beat for the front end and listen to their engines, and of the front end, which listens to
workers. An engine's step loop beats by itself (`engine.loop`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from .channel import Channel
from .protocol import Beat

#: Beats that are missed before their sender counts as silent.
BEATS: Final = 5


class Heart:
    """Beats over a channel until that is closed.

    Args:
        timeout_s: how long the listener waits, in seconds.
    """

    def __init__(self, channel: Channel, timeout_s: float) -> None:
        self._channel = channel
        self._every_s = timeout_s / BEATS
        self._loop = asyncio.get_running_loop()
        self._answers = True
        self._frames = -1
        self.beat()

    def set_answering(self, answers: bool) -> None:
        """Say whether what this process depends on runs, see `Beat`."""
        if answers != self._answers:
            self._answers = answers
            self._channel.send(Beat(answers))

    def beat(self) -> None:
        """Send a `Beat` unless another frame has been sent since the last call; this timer calls it again and again."""
        if self._channel.closed:
            return
        if self._channel.frames == self._frames:
            self._channel.send(Beat(self._answers))
            self._channel.flush()
        self._frames = self._channel.frames
        self._loop.call_later(self._every_s, self.beat)


class HeartbeatListener:
    """Counts the beats that a channel misses.

    Time is measured in ticks of this loop, and what has arrived is read between two ticks: a loop that was held up
    itself, or a machine that was suspended, finds nobody silent.

    Args:
        timeout_s: how long a sender may be silent, in seconds; there are `BEATS` ticks in that time.
        on_tick: called at each tick, with the time in seconds for which nothing has been received.
    """

    def __init__(self, channel: Channel, timeout_s: float, on_tick: Callable[[float], None]) -> None:
        self._channel = channel
        self._every_s = timeout_s / BEATS
        self._on_tick = on_tick
        self._loop = asyncio.get_running_loop()
        self._reads = channel.reads
        self._missed = 0
        self._timer = self._loop.call_later(self._every_s, self._tick)

    def close(self) -> None:
        """Listen no more."""
        self._timer.cancel()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._every_s, self._tick)
        heard, self._reads = self._channel.reads != self._reads, self._channel.reads
        self._missed = 0 if heard else self._missed + 1
        self._on_tick(self._missed * self._every_s)
