"""One server with the demo model for a module; requests over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from djl_python.testing import RunningServer, running_server

DEMO = Path(__file__).resolve().parents[2] / "serving_templates" / "demo"


@pytest.fixture(scope="module")
def demo() -> Iterator[RunningServer]:
    with running_server("-m", f"demo={DEMO}", environment={"OPTION_THREADS": "1"}) as server:
        yield server
