"""The clock of times of idleness; tests have one that they set.

Used in the front end's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A function that will be called."""

    def cancel(self) -> None:
        """Do not call it, if it has not been called yet."""
        ...


class Clock(Protocol):
    """Seconds that only grow, and functions that are called in time."""

    def now(self) -> float:
        """The time in seconds."""
        ...

    def call_at(self, when_s: float, call: Callable[[], None]) -> Timer:
        """Call a function, not before it returns, at this time or soon after it."""
        ...


class SystemClock:
    """The machine's."""

    def now(self) -> float:
        """The time in seconds, of `time.monotonic`."""
        return time.monotonic()

    def call_at(self, when_s: float, call: Callable[[], None]) -> Timer:
        """Have the running event loop call a function."""
        return asyncio.get_running_loop().call_later(max(0.0, when_s - self.now()), call)
