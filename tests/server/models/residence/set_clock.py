"""A clock whose time a test sets."""

from __future__ import annotations

from collections.abc import Callable


class _Timer:
    def __init__(self, when_s: float, call: Callable[[], None]) -> None:
        self.when_s, self.call = when_s, call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class SetClock:
    """Stands still but for `pass_`."""

    def __init__(self) -> None:
        self._now_s = 1000.0
        self._timers: list[_Timer] = []

    def now(self) -> float:
        return self._now_s

    def call_at(self, when_s: float, call: Callable[[], None]) -> _Timer:
        self._timers.append(_Timer(when_s, call))
        return self._timers[-1]

    def pass_(self, seconds: float) -> None:
        """Let time pass, and call what is due."""
        self._now_s += seconds
        due = [timer for timer in self._timers if timer.when_s <= self._now_s and not timer.cancelled]
        self._timers = [timer for timer in self._timers if timer not in due and not timer.cancelled]
        for timer in due:
            timer.call()

    @property
    def waits(self) -> bool:
        """Whether a timer is set."""
        return any(not timer.cancelled for timer in self._timers)
