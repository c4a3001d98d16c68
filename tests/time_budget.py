"""`--slow-for MINUTES`: slow tests begin only within that time, so that a run of them ends in a time that is known.

Runs in every pytest process. A test that is left out is skipped with the reason, so the summary counts them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import pytest

_OPTION: Final = "--slow-for"


class TimeBudget:
    """Skips slow tests once `minutes` have passed since this was made."""

    def __init__(self, minutes: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._minutes = minutes
        self._now_s = now_s
        self._ends_s = now_s() + 60 * minutes

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.get_closest_marker("slow") and self._now_s() > self._ends_s:
            pytest.skip(f"slow tests began for {self._minutes:g} minutes, as {_OPTION} says; `make test-all` runs all")


def add_option(parser: pytest.Parser) -> None:
    """Add the option to pytest's own."""
    parser.addoption(_OPTION, metavar="MINUTES", type=float, help="slow tests begin only within so many minutes")


def minutes(config: pytest.Config) -> float | None:
    """The time in which slow tests may begin, or None where all of them run."""
    given: float | None = config.getoption(_OPTION)
    return given


def register(config: pytest.Config) -> None:
    """Hold this run to its budget, if it has one."""
    given = minutes(config)
    if given is not None:
        config.pluginmanager.register(TimeBudget(given), "time_budget")
