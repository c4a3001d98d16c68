"""What tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from djl_python.testing import RunningServer, running_server

#: The same examples in every run, and no time limit for one: neither depends on how busy the machine is.
settings.register_profile("reproducible", derandomize=True, deadline=None, database=None)
settings.load_profile("reproducible")

DEMO = Path(__file__).resolve().parents[1] / "serving_templates" / "demo"


@pytest.fixture(scope="session")
def demo() -> Iterator[RunningServer]:
    """A server with the demo model, for tests that leave it as it was."""
    with running_server("-m", f"demo={DEMO}", environment={"OPTION_THREADS": "1"}) as server:
        yield server
