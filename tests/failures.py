"""Prints a failed test's name and error when it fails, so that a run that is stopped has told what it had found.

Runs in pytest's own process; with workers (-n), in the one that they report to.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest


class FailuresAtOnce:
    """Writes a line for each report of a failure, in setup, call or teardown; also of one that --reruns tries again."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome: str = report.outcome  # pytest-rerunfailures has one more
        again = outcome == "rerun"
        if report.failed or again:
            error = report.longreprtext.strip().rpartition("\n")[2]
            self._write(f"failed{', tried again' if again else ''}: {report.nodeid} ({report.when}): {error}")


def register(config: pytest.Config) -> None:
    """Have this run's failures printed as they come, unless this is a worker, which can't print."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if not hasattr(config, "workerinput") and reporter is not None:
        config.pluginmanager.register(FailuresAtOnce(lambda text: reporter.write_line(f"\n{text}")), "failures_at_once")
