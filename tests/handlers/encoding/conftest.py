from __future__ import annotations

import pytest

from djl_python.dialects import DIALECTS
from tests.handlers.encoding.harness import PlainTasks


@pytest.fixture(autouse=True)
def plain_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DIALECTS, "tasks", f"{PlainTasks.__module__}:PlainTasks")
