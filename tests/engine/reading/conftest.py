"""A model is watched with the engine's own attention in it. No kernels are needed."""

from __future__ import annotations

import pytest

from djl_python.engine.attention.lookup import register


@pytest.fixture(autouse=True, scope="session")
def _attention() -> None:
    register()
