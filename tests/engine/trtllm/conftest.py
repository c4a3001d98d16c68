"""TensorRT-LLM and a GPU, as far as our processes look for them: a package made for tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

FAKE = Path(__file__).with_name("fake")


def pretend(patch: pytest.MonkeyPatch) -> None:
    """Let this process and those that it starts find the tests' TensorRT-LLM, and believe in a GPU for it."""
    patch.syspath_prepend(str(FAKE))
    patch.setenv("PYTHONPATH", str(FAKE))
    for module in ("row", "trtllm.row"):
        patch.setattr(f"djl_python.engine.{module}.has_gpu", lambda: True)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pretend(monkeypatch)
    yield
