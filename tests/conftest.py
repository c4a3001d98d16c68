"""What tests of several folders share."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from djl_python.testing import RunningServer, running_server

#: The same examples in every run, and no time limit for one: neither depends on how busy the machine is.
settings.register_profile("reproducible", derandomize=True, deadline=None, database=None)
settings.load_profile("reproducible")

# A suite that a shell has put into the background ignores interrupts, and so would the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

DEMO = Path(__file__).resolve().parents[1] / "serving_templates" / "demo"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first, then those with the most tests.

    What takes long is not left for the end, where the other workers have nothing more to do. xdist keeps this order
    with `--no-loadscope-reorder`.
    """
    counts = Counter(item.path for item in items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, -counts[item.path], item.path))


@pytest.fixture(scope="session")
def demo() -> Iterator[RunningServer]:
    """A server with the demo model, for tests that leave it as it was."""
    with running_server("-m", f"demo={DEMO}", environment={"OPTION_THREADS": "1"}) as server:
        yield server
