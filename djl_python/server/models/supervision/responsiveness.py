"""Whether a worker responds, from its start to its end.

Runs in the front end's event loop. A worker that says nothing for `heartbeat_timeout` gets no calls until it speaks
again: user code may hold its event loop, and will let go of it. It is killed if its process is halted, or if it stays
silent for as long as any call may take.
"""

from __future__ import annotations

from collections.abc import Callable

from ....config import ModelConfig
from ....ipc.channel import Channel
from ....ipc.heartbeat import HeartbeatListener
from ....ipc.process_state import HALTED
from ..placement import Started


class Responsiveness:
    """Listens to one worker.

    Args:
        on_change: called about a worker that has loaded, again and again, with whether it responds.
        hang_up: called with the reason when the worker is to be killed.

    Attributes:
        loaded: whether the worker has loaded: before, it may be silent, but not halted.
    """

    def __init__(
        self,
        channel: Channel,
        started: Started,
        config: ModelConfig,
        on_change: Callable[[bool], None],
        hang_up: Callable[[str], None],
    ) -> None:
        self.loaded = False
        self._started = started
        self._timeout_s = config.serving.heartbeat_timeout_s
        # Each of its calls has had its time by then: the last one may have come just before the silence was noticed.
        self._limit_s = self._timeout_s + config.option.predict_timeout
        self._on_change = on_change
        self._hang_up = hang_up
        self._answers = True
        self._listener = HeartbeatListener(channel, self._timeout_s, self._judge)

    def set_answering(self, answers: bool) -> None:
        """Hear from the worker itself whether it can answer, see `Beat`."""
        self._answers = answers
        if self.loaded:
            self._on_change(answers)

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()

    def _judge(self, silent_s: float) -> None:
        silent = silent_s >= self._timeout_s
        if silent and self._started.halted():
            self._give_up(HALTED)
        elif self.loaded and silent_s >= self._limit_s:
            self._give_up(f"did not respond for {silent_s:.3g} s, longer than option.predict_timeout")
        elif self.loaded:
            self._on_change(self._answers and not silent)

    def _give_up(self, reason: str) -> None:
        self.close()
        self._hang_up(reason)
