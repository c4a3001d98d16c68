"""What several tests of configuration share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that this process can't look into, whoever runs the tests: to root, modes mean nothing."""
    directory = tmp_path / "private"
    directory.mkdir()

    def refusing(call: Callable[..., Any], prefix: str) -> Callable[..., Any]:
        def refused(path: Any = ".", *args: Any, **options: Any) -> Any:
            if str(path).startswith(prefix):
                raise PermissionError(13, "Permission denied", str(path))
            return call(path, *args, **options)

        return refused

    monkeypatch.setattr(os, "stat", refusing(os.stat, f"{directory}/"))
    for name in ("listdir", "scandir"):  # pathlib's choice, by Python's version
        monkeypatch.setattr(os, name, refusing(getattr(os, name), str(directory)))
    return directory
