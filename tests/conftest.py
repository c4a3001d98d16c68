"""What tests of several folders share."""

from __future__ import annotations

import logging
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from djl_python.testing import RunningServer, running_server
from tests import failures, processor_time, time_budget, waiting

#: The same examples in every run, and no time limit for one: neither depends on how busy the machine is.
settings.register_profile("reproducible", derandomize=True, deadline=None, database=None)
settings.load_profile("reproducible")

# A suite that a shell has put into the background ignores interrupts, and so would the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No load balancer has to notice that a test's server ends.
os.environ.setdefault("SERVING_DRAIN_DELAY", "0")

DEMO = Path(__file__).resolve().parents[1] / "serving_templates" / "demo"


def pytest_addoption(parser: pytest.Parser) -> None:
    time_budget.add_option(parser)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    failures.register(config)
    time_budget.register(config)
    waiting.register(config)
    processor_time.register(config)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with slow tests first, then those with the most tests; where the time is limited, those with the fewest.

    What takes long is not left for the end, where the other workers have nothing more to do. A limited time reaches the
    most files, and leaves out cases of tests that have hundreds. xdist keeps this order with `--no-loadscope-reorder`.
    """
    counts = Counter(item.path for item in items)
    if time_budget.minutes(config) is not None:
        items.sort(key=lambda item: (counts[item.path], item.path))
        return
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, -counts[item.path], item.path))


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """What a test configures (`logs.configure`, as a command does) is not what later tests log to, at its level."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture(scope="session")
def demo() -> Iterator[RunningServer]:
    """A server with the demo model, for tests that leave it as it was."""
    with running_server("-m", f"demo={DEMO}", environment={"OPTION_THREADS": "1"}) as server:
        yield server
