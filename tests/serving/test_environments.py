"""Models with environments of their own, beside one another in one server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from djl_python.testing import RunningServer, running_server
from tests.server.environments.packages import WORKERS, bare_interpreter, packages_of, pip_settings, write_wheel

MODEL = """\
import subprocess
import sys

import cow
import msgspec
from djl_python import Output


def handle(inputs):
    if inputs.is_empty():
        return None
    command = subprocess.check_output(["show-cow"], text=True).strip()
    return Output().add_as_json([cow.VERSION, command, sys.prefix, msgspec.__file__])
"""
BARE = """\
import importlib.util

from djl_python import Output


def handle(inputs):
    found = [name for name in ("torch", "tornado", "numpy") if importlib.util.find_spec(name)]
    return None if inputs.is_empty() else Output().add_as_json(found)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environments")
    for version in ("1", "2", "3"):
        write_wheel(folder / "links", "cow", version, script=True)
    python = bare_interpreter(folder / "python", *WORKERS)
    for name, source, requirements, properties in (
        ("first", MODEL, "cow==1\n", ""),
        ("second", MODEL, "cow==2\n", ""),
        ("broken", MODEL, "cow==4\n", ""),
        ("bare", BARE, None, f"option.pythonExecutable={python}\n"),
    ):
        (folder / name).mkdir()
        (folder / name / "model.py").write_text(source)
        (folder / name / "serving.properties").write_text(properties)
        if requirements is not None:
            (folder / name / "requirements.txt").write_text(requirements)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    models = [word for name in ("first", "second", "broken", "bare") for word in ("-m", f"{name}={folder / name}")]
    pip = dict(pair.split("=", 1) for pair in pip_settings(folder / "links").split(","))
    with running_server(*models, environment={"DJL_CACHE_DIR": str(folder / "cache"), **pip}) as running:
        yield running


def test_each_model_has_its_own_packages_over_the_servers(server: RunningServer, folder: Path) -> None:
    import msgspec

    ours = packages_of(Path(sys.prefix))
    for name, version in (("first", "1"), ("second", "2")):
        told, command, prefix, origin = httpx.post(f"{server.url}/predictions/{name}", json={}).json()
        assert (told, command, origin) == (version, version, msgspec.__file__)
        assert Path(prefix).parent == folder / "cache" / "venvs"
    # A changed file makes another environment, and leaves the one that has been made.
    (folder / "first" / "requirements.txt").write_text("cow==3\n")
    for action in ("unload", "load"):
        assert httpx.post(f"{server.url}/v2/repository/models/first/{action}", timeout=60).status_code == 200
    assert httpx.post(f"{server.url}/predictions/first", json={}).json()[0] == "3"
    assert len([path for path in (folder / "cache" / "venvs").iterdir() if path.is_dir()]) == 3
    assert packages_of(Path(sys.prefix)) == ours
    assert "model first: installing requirements\n" in server.output()


def test_an_interpreter_that_has_nothing_of_ours_runs_a_handler(server: RunningServer) -> None:
    assert httpx.post(f"{server.url}/predictions/bare", json={}).json() == []


def test_a_model_whose_requirements_can_not_be_installed_has_failed(server: RunningServer, folder: Path) -> None:
    assert httpx.get(f"{server.url}/ping").json()["broken"] == {"status": "FAILED"}
    refused = httpx.post(f"{server.url}/predictions/broken", json={})
    assert refused.status_code == 503 and "model 'broken' has failed" in refused.text
    assert f"\n  {folder}/broken/requirements.txt can't be installed: " in server.output()
    assert "\n  ERROR: No matching distribution found for cow==4\n" in server.output()
