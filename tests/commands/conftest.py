"""A model that is served by code of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "echo"
    directory.mkdir()
    (directory / "model.py").write_text("def handle(inputs):\n    return None\n")
    (directory / "serving.properties").write_text("option.dtype=fp16\noption.predict_timout=3\n")
    return directory
