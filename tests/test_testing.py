"""The kit's server: it is where its caller looks for it, with what its caller asked for."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from djl_python.testing import RunningServer, running_server


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.py").write_text("def handle(inputs):\n    return None\n")
    return tmp_path / "model"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment that is stronger than any command line."""
    monkeypatch.setenv("SERVING_INFERENCE_ADDRESS", f"unix:{tmp_path}/elsewhere")
    monkeypatch.setenv("SERVING_LOAD_MODELS", f"other={tmp_path}")
    monkeypatch.setenv("SERVING_MODEL_STORE", str(tmp_path / "nothing"))
    monkeypatch.setenv("HF_MODEL_ID", str(tmp_path))


def models_of(server: RunningServer) -> list[str]:
    with urllib.request.urlopen(f"{server.url}/ping", timeout=5) as response:
        return list(json.load(response))


def test_the_command_line_counts(model: Path) -> None:
    with running_server("-s", str(model), start_timeout_s=10) as server:
        assert models_of(server) == ["model"]


def test_the_callers_environment_reaches_the_server(model: Path) -> None:
    with running_server(environment={"SERVING_LOAD_MODELS": f"called={model}"}, start_timeout_s=10) as server:
        assert models_of(server) == ["called"]
