"""A handler's Reply and Metrics, over the channel to the front end.

Runs in the worker's event loop.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Mapping
from typing import Final

from ..core.call_trace import CallTrace
from ..core.call_usage import CallUsage
from ..core.metrics import MetricFamily
from ..ipc.channel import Channel
from ..ipc.protocol import BodyChunk, Break, EngineMetrics, Progress, Report, Start

#: A stream that waits for its client continues when no more than this is unread.
MAX_UNREAD_BYTES: Final = 1 << 20
REQUEST_ID: Final = "x-request-id"
_BYTES: Final = (bytes, bytearray, memoryview)
#: Least time between reports, `flush` aside. After it, metrics wait for a frame that leaves anyway: a report per token
#: would cost more than the token's text, and a report in a frame of its own wakes two processes.
REPORT_EVERY_S: Final = 0.1
#: Longest time that metrics wait before they are reported.
REPORT_WITHIN_S: Final = 0.3


class ChannelReply:
    """A `handler.Reply`. Every answer carries the request's id.

    Args:
        ends: called when the answer's last piece is about to leave.
        trace: sent before that, if the call is traced.
        usage: sent before that, if its tokens are counted.

    Attributes:
        headers: of the answer, once it has started; names in lower case.
    """

    def __init__(
        self,
        channel: Channel,
        call_id: int,
        request_id: str,
        ends: Callable[[], None],
        trace: CallTrace | None = None,
        usage: CallUsage | None = None,
    ) -> None:
        self.trace = trace
        self.usage = usage
        self._channel = channel
        self._id = call_id
        self._request_id = request_id
        self._ends = ends
        self.started = False
        self.finished = False
        self.headers: dict[str, str] = {}
        self._unread_bytes = 0
        self._taken = asyncio.Event()

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send status and headers.

        Raises:
            RuntimeError: the answer has already been started.
            TypeError, ValueError: the status is not an HTTP status, or a header is not text.
        """
        if self.finished:
            return
        if isinstance(status, bool) or not isinstance(status, int):
            raise TypeError(f"the status is {status!r}, expected an int")
        if not 200 <= status <= 599:
            raise ValueError(f"the status is {status}, expected an HTTP status from 200 to 599")
        for name, value in headers.items():
            if not (isinstance(name, str) and isinstance(value, str)):
                raise TypeError(f"the header {name!r} is {value!r}, expected str")
        if self.started:
            raise RuntimeError("an answer can be started only once")
        lowered = {REQUEST_ID: self._request_id} | {name.lower(): value for name, value in headers.items()}
        self._channel.send(Start(self._id, status, lowered))
        self.started, self.headers = True, lowered

    def write(self, data: bytes) -> None:
        """Send a piece of the body; an empty one is not sent.

        Raises:
            RuntimeError: the answer has not been started.
            TypeError: the piece is not bytes.
            ValueError: the piece is too long to be sent at once.
        """
        if data and not self.finished:
            self._check(data)
            self._channel.send(BodyChunk(self._id, data, False))
            self._unread_bytes += len(data)

    def keep_alive(self, data: bytes) -> None:
        """Send a piece that only keeps the connection open: it does not restart predict_timeout. Raises as `write`."""
        if not self.finished:
            self._check(data)
            self._channel.send(BodyChunk(self._id, data, False, keep_alive=True))
            self._unread_bytes += len(data)

    def progressed(self) -> None:
        """Restart predict_timeout, though nothing is written."""
        if not self.finished:
            self._channel.send(Progress(self._id))

    async def drain(self) -> None:
        """Wait until the client has taken all but `MAX_UNREAD_BYTES` of what was written."""
        while self._unread_bytes > MAX_UNREAD_BYTES and not self.finished:
            self._taken.clear()
            await self._taken.wait()

    def taken(self, size: int) -> None:
        """Record that the client has taken `size` more bytes."""
        self._unread_bytes -= size
        self._taken.set()

    def finish(self, data: bytes = b"") -> None:
        """Send the last piece.

        Raises:
            RuntimeError: the answer has not been started.
            TypeError: the piece is not bytes.
            ValueError: the piece is too long to be sent at once; the answer has not ended.
        """
        if self.finished:
            return
        self._check(data)
        self.send_notes()
        self._channel.send(BodyChunk(self._id, data, True))
        self.finished = True
        self._ends()

    def break_off(self) -> None:
        """End an answer that can't be completed, so that the client sees that it is incomplete."""
        if not self.finished:
            self.finished = True
            self.send_notes()
            self._channel.send(Break(self._id))

    def abandon(self) -> None:
        """Send nothing more: the client has gone."""
        self.finished = True
        self._taken.set()

    def send_notes(self) -> None:
        """Send the call's trace and usage."""
        if self.trace is not None:
            self.trace.send()
        if self.usage is not None:
            self.usage.send()

    def _check(self, data: bytes) -> None:
        if not self.started:
            raise RuntimeError("an answer must be started before its body")
        if not isinstance(data, _BYTES):
            raise TypeError(f"a piece of the body is {type(data).__name__}, expected bytes")


class ChannelMetrics:
    """A `handler.Metrics` that gathers counts into Reports, see `REPORT_EVERY_S`. Any thread may count."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._due_s = 0.0  # from this time of the loop on, a report joins the next frame
        self._timer: asyncio.TimerHandle | None = None
        self._clear()
        channel.before_frame = self._go_along

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter.

        Raises:
            TypeError, ValueError: the name is not text, or the amount is not a finite number >= 0.
        """
        _check_name(name)
        added = float(amount)
        if not 0 <= added < math.inf:
            raise ValueError(f"the counter {name!r} can't grow by {amount}")
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + added
            self._schedule()

    def gauge(self, name: str, value: float) -> None:
        """Set a gauge.

        Raises:
            TypeError, ValueError: the name is not text, or the value is not a number.
        """
        _check_name(name)
        shown = float(value)
        with self._lock:
            self._gauges[name] = shown
            self._schedule()

    def observe(self, name: str, *values: float) -> None:
        """Add observations to a histogram.

        Raises:
            TypeError, ValueError: the name is not text, or a value is not a finite number.
        """
        _check_name(name)
        observed = [float(value) for value in values]
        if not all(map(math.isfinite, observed)):
            raise ValueError(f"the histogram {name!r} can't have {', '.join(map(str, values))}")
        with self._lock:
            self._observations.setdefault(name, []).extend(observed)
            self._schedule()

    def engine(self, families: list[MetricFamily]) -> None:
        """Show the metrics that an engine keeps itself. Called in the event loop."""
        self._channel.send(EngineMetrics(families))

    def call_ends(self) -> None:
        """Report in the next frame, an answer's last: a client that reads the metrics then expects the call there."""
        self._due_s = 0.0

    def flush(self) -> None:
        """Report the counts now, even if no other frame is about to leave."""
        if self._scheduled:
            self._send()

    def _clear(self) -> None:
        self._scheduled = False
        self._gauges: dict[str, float] = {}
        self._counts: dict[str, float] = {}
        self._observations: dict[str, list[float]] = {}

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            if threading.current_thread() is threading.main_thread():
                self._wait()
            else:
                self._loop.call_soon_threadsafe(self._wait)

    def _wait(self) -> None:
        """Wait for a frame that leaves anyway, at most `REPORT_WITHIN_S`."""
        if self._scheduled and self._timer is None:  # else the report left before another thread's call arrived
            self._timer = self._loop.call_later(REPORT_WITHIN_S, self.flush)

    def _go_along(self) -> None:
        if self._scheduled and self._loop.time() >= self._due_s:
            self._send()

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due_s = self._loop.time() + REPORT_EVERY_S
        with self._lock:
            report = Report(gauges=self._gauges, counts=self._counts, observations=self._observations)
            self._clear()
        self._channel.send(report)


def _check_name(name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"the name of a metric is {name!r}, expected str")
    name.encode()  # raises for a lone surrogate, which no frame can hold
