"""How fast a model's waiting calls begin, and so how long a new one would wait.

Runs in the front end's event loop.
"""

from __future__ import annotations

from typing import Final

#: The weight of the latest interval in the mean: about the last twenty starts count.
_LATEST: Final = 0.1


class StartRate:
    """The mean time between two starts of waiting calls."""

    def __init__(self) -> None:
        self._mean_s: float | None = None
        self._last_s: float | None = None  # when the last one began, if others waited on; None: none did

    def note(self, now_s: float, waiting: int) -> None:
        """A waiting call begins.

        Args:
            now_s: the time, on any clock that only grows.
            waiting: how many go on waiting. Where none does, the time to the next start says nothing.
        """
        if self._last_s is not None:
            interval_s = now_s - self._last_s
            mean_s = self._mean_s
            self._mean_s = interval_s if mean_s is None else mean_s + _LATEST * (interval_s - mean_s)
        self._last_s = now_s if waiting else None

    def wait_s(self, ahead: int) -> float | None:
        """How long a call would wait that so many go before, in seconds; None: nothing has been measured yet."""
        return None if self._mean_s is None else (ahead + 1) * self._mean_s
