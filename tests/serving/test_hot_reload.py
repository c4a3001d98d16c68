"""A model of generated text is upgraded in place, by the real server and its real processes, while requests come."""

from __future__ import annotations

import re
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from djl_python.testing import FAKE_ENGINE, RunningServer, running_server, write_byte_tokenizer

REQUEST = {"inputs": "say it again", "parameters": {"max_new_tokens": 12}}
#: A token of the request that the built-in handler is tried with.
H_OF_HELLO = ord("H")
GREEDY = """
from djl_python.testing import FakeRollingBatch

class Greedy(FakeRollingBatch):
    def __init__(self, settings, progress):
        raise MemoryError("no 64 GiB")
"""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("-m", "NONE") as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60, verify=False) as made:
        yield made
        for model in made.get("/models").json()["models"]:
            made.delete(f"/models/{model['modelName']}")


def text_model(parent: Path, **options: Any) -> Path:
    directory = parent / "text"
    if not directory.exists():
        write_byte_tokenizer(directory)
    settings = {"model_id": directory, "rolling_batch": FAKE_ENGINE, "max_model_len": 500, **options}
    lines = [f"option.{name}={value}" for name, value in settings.items()]
    (directory / "serving.properties").write_text("\n".join(lines))
    return directory


class Asking:
    """Requests one after the other, in a thread, until the block ends; then, that all were answered."""

    def __init__(self, server: RunningServer, path: str) -> None:
        self._url, self._over = f"{server.url}{path}", threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.statuses: list[int] = []

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        assert set(self.statuses) == {200}

    def _ask(self) -> None:
        with httpx.Client(timeout=60, verify=False) as client:
            while not self._over.is_set():
                self.statuses.append(client.post(self._url, json=REQUEST).status_code)


def settings(client: httpx.Client, name: str) -> dict[str, Any]:
    (workflow,) = client.get(f"/models/{name}").json()
    return dict(workflow["models"][0])


def test_a_model_that_loads_but_does_not_generate_replaces_nothing(
    server: RunningServer, client: httpx.Client, tmp_path: Path
) -> None:
    directory = text_model(tmp_path)
    assert client.post("/models", params={"url": str(directory)}).status_code == 200
    pids = [worker["pid"] for group in settings(client, "text")["workerGroups"] for worker in group["workers"]]
    with Asking(server, "/predictions/text"):
        text_model(tmp_path, fake_failing_token=H_OF_HELLO)
        refused = client.post("/models", params={"url": str(directory), "reload": True})
        assert refused.status_code == 500
        why = f"model 'text' loaded, but its trial request failed: 424 .*token {H_OF_HELLO} makes a step fail"
        assert_matches(why, refused.json()["message"])
        refused = client.post("/v2/repository/models/text/load")
        assert refused.status_code >= 400
        assert_matches(why, refused.json()["error"])
    told = settings(client, "text")
    assert_matches(why, told["reloadFailure"])
    assert [worker["pid"] for group in told["workerGroups"] for worker in group["workers"]] == pids


def assert_matches(pattern: str, text: str) -> None:
    assert re.search(pattern, text), text


def test_a_new_version_of_a_handler_takes_over(server: RunningServer, client: httpx.Client, tmp_path: Path) -> None:
    """From an archive, whose next version has another name for its answers."""
    for answer in ("first", "second"):
        code = f"from djl_python import Output\ndef handle(inputs):\n    return Output().add_as_json({answer!r})\n"
        with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
            archive.writestr("root/model.py", code)
            archive.writestr("root/serving.properties", "option.trial_request=trial.json\n")
            archive.writestr("root/trial.json", '{"inputs": "x"}')
        if answer == "first":
            assert client.post("/models", params={"url": str(tmp_path / "m.zip")}).status_code == 200
            assert client.post("/predictions/m", json=REQUEST).json() == "first"
        else:
            with Asking(server, "/predictions/m"):
                assert client.post("/v2/repository/models/m/load").status_code == 200
            assert client.post("/predictions/m", json=REQUEST).json() == "second"


def test_a_model_for_which_there_is_no_memory(client: httpx.Client, tmp_path: Path) -> None:
    """As DJL says it. An engine's reason comes from another process than a handler's."""
    (tmp_path / "greedy").mkdir()
    (tmp_path / "greedy" / "model.py").write_text("held = bytearray(1 << 60)\n")
    refused = client.post("/models", params={"url": str(tmp_path / "greedy")})
    assert refused.status_code == 507 and "MemoryError" in refused.json()["message"]
    wide = text_model(tmp_path, rolling_batch="greedy:Greedy")
    (wide / "greedy.py").write_text(GREEDY)
    refused = client.post("/models", params={"url": str(wide)})
    assert refused.status_code == 507 and "no 64 GiB" in refused.json()["message"]
