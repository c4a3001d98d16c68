"""Names tests that take long while they run, so that nobody has to guess what a silent suite waits for.

Runs in pytest's own process; with workers (-n), in the one that they report to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import pytest

#: When a test is named, in seconds from its start.
TOLD_AT_S: Final = (10, 60, 300)
_LOOKS_EVERY_S: Final = 1.0


class Waiting:
    """Tests that run, each with how long it has been told of."""

    def __init__(self, write: Callable[[str], None], now_s: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._now_s = now_s
        self._running: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def tell(self) -> None:
        """Name those that have run for so long that they are to be named, once for each time in `TOLD_AT_S`."""
        with self._lock:
            for name, (began_s, told) in self._running.items():
                passed = sum(self._now_s() - began_s >= limit_s for limit_s in TOLD_AT_S)
                if passed > told:
                    self._running[name] = (began_s, passed)
                    self._write(f"waiting for {name}, with what it starts: {self._now_s() - began_s:.0f} s")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        with self._lock:
            self._running[nodeid] = (self._now_s(), 0)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        with self._lock:
            self._running.pop(nodeid, None)

    def pytest_sessionstart(self) -> None:
        threading.Thread(target=self._look, name="waiting", daemon=True).start()

    def pytest_sessionfinish(self) -> None:
        self._ended.set()

    def _look(self) -> None:
        while not self._ended.wait(_LOOKS_EVERY_S):
            self.tell()


def register(config: pytest.Config) -> None:
    """Have the tests of this run named, unless this is a worker, which can't print."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if not hasattr(config, "workerinput") and reporter is not None:
        config.pluginmanager.register(Waiting(lambda text: reporter.write_line(f"\n{text}")), "waiting")
