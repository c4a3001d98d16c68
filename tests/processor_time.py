"""Prints which test files take the most processor time, so that what makes the suite slow is known after each run.

Every pytest process measures the files that it runs: its own time and that of all processes which its tests start. What
files share (a server, an engine) counts for the file that starts it, and afterwards for the file that makes it work.
Workers of xdist send their sums to the process that prints.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from typing import Any, Final

import psutil
import pytest

#: How many files are printed.
DEAREST: Final = 10
_KEY: Final = "processor_time_s"
_COLLECTION: Final = "imports and collection"


def spent_s() -> float:
    """The processor time of this process and of all that it started, running or ended, in seconds."""
    spent = sum(os.times()[:4])
    for process in psutil.Process().children(recursive=True):
        try:
            spent += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:  # It ended since it was listed; its time is in the next sum.
            continue
    return spent


class ProcessorTime:
    """The processor time of each test file, in seconds."""

    def __init__(self) -> None:
        self.spent_s: defaultdict[str, float] = defaultdict(float)
        self._before_s = 0.0

    def pytest_collection_finish(self) -> None:
        self._add(_COLLECTION)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        result = yield
        if nextitem is None or nextitem.path != item.path:
            self._add(item.nodeid.partition("::")[0])
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_KEY] = dict(self.spent_s)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        # A worker that crashed has sent nothing.
        for name, spent in getattr(node, "workeroutput", {}).get(_KEY, {}).items():
            self.spent_s[name] += spent

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        total_s = sum(self.spent_s.values())
        terminalreporter.section(f"{total_s:.0f} s of processor time; the {DEAREST} dearest files")
        for name, spent in sorted(self.spent_s.items(), key=lambda each: -each[1])[:DEAREST]:
            terminalreporter.write_line(f"{spent:.1f} s {name}")

    def _add(self, name: str) -> None:
        # A process whose parent ended without waiting for it leaves the sum, which may then be less than before.
        now_s = spent_s()
        self.spent_s[name] += max(0.0, now_s - self._before_s)
        self._before_s = now_s


def register(config: pytest.Config) -> None:
    """Have the processor time of this run's files measured and printed."""
    config.pluginmanager.register(ProcessorTime(), "processor_time")
