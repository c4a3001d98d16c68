"""Native kernels need a processor and a compiler; without them these tests have nothing to test."""

from __future__ import annotations

import pytest

from djl_python.engine.attention import register
from djl_python.engine.native.build import UnavailableError, library


@pytest.fixture(autouse=True, scope="session")
def _kernels() -> None:
    try:
        library()
    except UnavailableError as reason:
        pytest.skip(str(reason))
    register()
