"""Adapters over DJL's management API and vLLM's, of a model with the user's own functions, in two real workers."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from djl_python.testing import RunningServer, running_server

MODEL = """
import os
import time
from djl_python import Input, Output

REGISTERED = {}

def register_adapter(inputs: Input) -> Output:
    name, src = inputs.get_property("name"), inputs.get_property("src")
    if src == "broken":
        raise ValueError("no weights there")
    if src == "refused":
        return Output().error("there is no room")
    REGISTERED[name] = {key: inputs.get_as_string(key) for key in inputs.get_content().get_keys()}
    return Output().add(f"Adapter {name} registered")

def unregister_adapter(inputs: Input) -> Output:
    del REGISTERED[inputs.get_property("name")]
    return Output().add("gone")

def handle(inputs: Input) -> Output | None:
    if inputs.is_empty():
        return None
    if inputs.get_as_string() == "die":
        os._exit(1)
    time.sleep(0.3)
    return Output().add_as_json({"pid": os.getpid(), "registered": REGISTERED})
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path = tmp_path_factory.mktemp("own")
    (path / "model.py").write_text(MODEL)
    (path / "serving.properties").write_text("minWorkers=2\nmaxWorkers=2\n")
    plain = tmp_path_factory.mktemp("plain")
    (plain / "model.py").write_text("def handle(inputs):\n    return None\n")
    with running_server("-m", f"own={path}", "-m", f"plain={plain}") as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as made:
        yield made
        for one in made.get("/models/own/adapters").json()["adapters"]:
            made.delete(f"/models/own/adapters/{one['name']}")


def in_workers(server: RunningServer) -> dict[int, dict[str, Any]]:
    """What each of the two workers has registered, by its process."""
    registered: dict[int, dict[str, Any]] = {}
    deadline_s = time.monotonic() + 60
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        while len(registered) < 2:
            assert time.monotonic() < deadline_s
            answers = list(pool.map(lambda _: httpx.post(f"{server.url}/predictions/own", timeout=60), range(2)))
            registered = {answer.json()["pid"]: answer.json()["registered"] for answer in answers if answer.is_success}
    return registered


def register(client: httpx.Client, name: str, src: str, **further: str) -> httpx.Response:
    return client.post("/models/own/adapters", params={"name": name, "src": src, **further})


def test_an_adapter_from_registration_to_its_end(server: RunningServer, client: httpx.Client) -> None:
    answer = register(client, "a1", "/opt/a1", pin="true", mine="7")
    assert (answer.status_code, answer.json()) == (200, {"status": "Adapter a1 registered"})
    sent = {"name": "a1", "src": "/opt/a1", "pin": "true", "mine": "7"}
    assert list(in_workers(server).values()) == [{"a1": sent}] * 2
    shown = {"name": "a1", "src": "/opt/a1", "preload": True, "pin": True}
    assert client.get("/models/own/adapters/a1").json() == shown
    assert client.get("/models/own/adapters").json() == {"adapters": [shown]}

    answer = client.post("/models/own/adapters/a1/update", params={"pin": "false"})
    assert (answer.status_code, answer.json()) == (200, {"status": "Adapter a1 updated"})
    assert list(in_workers(server).values()) == [{"a1": {**sent, "pin": "false"}}] * 2
    assert client.put("/models/own/adapters/a1", params={"src": "/opt/b"}).status_code == 200
    assert client.get("/models/own/adapters/a1").json() == {**shown, "src": "/opt/b", "pin": False}

    answer = client.delete("/models/own/adapters/a1", headers={"x-amzn-sagemaker-adapter-alias": "mine"})
    assert (answer.status_code, answer.json()) == (200, {"status": "Adapter mine unregistered"})
    assert list(in_workers(server).values()) == [{}] * 2
    assert client.get("/models/own/adapters").json() == {"adapters": []}


def test_a_worker_that_is_started_again_or_added_has_them_too(server: RunningServer, client: httpx.Client) -> None:
    register(client, "a1", "/opt/a1")
    before = in_workers(server)
    assert client.post("/predictions/own", content=b"die").status_code == 424
    after = in_workers(server)
    assert list(after.values()) == [{"a1": {"name": "a1", "src": "/opt/a1"}}] * 2
    assert len(before.keys() & after.keys()) == 1
    assert client.post("/models", params={"reload": "true", "model_name": "own"}).status_code == 200
    reloaded = in_workers(server)
    assert not reloaded.keys() & after.keys()
    assert list(reloaded.values()) == [{"a1": {"name": "a1", "src": "/opt/a1"}}] * 2


def test_vllms_routes(server: RunningServer, client: httpx.Client) -> None:
    body = {"lora_name": "v", "lora_path": "/opt/v", "model": "own", "is_3d_lora_weight": False}
    answer = client.post("/v1/load_lora_adapter", json=body)
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'v' added successfully.")
    assert client.post("/v1/load_lora_adapter", json=body).status_code == 409
    assert client.post("/v1/load_lora_adapter", json={**body, "load_inplace": True}).status_code == 200
    assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["own", "v", "plain"]
    answer = client.post("/v1/unload_lora_adapter", json={"lora_name": "v", "model": "own"})
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'v' removed successfully.")
    assert client.post("/v1/unload_lora_adapter", json={"lora_name": "v", "model": "own"}).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "parameters", "status", "told"),
    [
        ("POST", "/models/own/adapters", {"name": "a"}, 400, "src: required"),
        ("POST", "/models/own/adapters", {"name": "../a", "src": "/a"}, 400, "name: expected 1 to 256 letters"),
        ("POST", "/models/own/adapters", {"name": "a", "src": "/a", "pin": "x"}, 400, "pin: expected true or false"),
        ("POST", "/models/own/adapters", {"name": "a", "src": "broken"}, 424, "ValueError: no weights there"),
        ("POST", "/models/own/adapters", {"name": "a", "src": "refused"}, 424, "there is no room"),
        ("POST", "/models/none/adapters", {"name": "a", "src": "/a"}, 404, "there is no model 'none'"),
        ("POST", "/adapters", {"name": "a", "src": "/a"}, 400, "model_name is required"),
        ("POST", "/models/plain/adapters", {"name": "a", "src": "/a"}, 400, "has no register_adapter(inputs)"),
        ("POST", "/models/own/adapters/a/update", {}, 404, "The adapter a was not found"),
        ("GET", "/models/own/adapters/a", {}, 404, "The adapter a was not found"),
        ("DELETE", "/models/own/adapters/a", {}, 404, "The adapter a was not found"),
        ("GET", "/models/own/adapters", {"limit": "0"}, 400, "limit: expected"),
    ],
)
def test_a_refused_change_changes_no_adapter(
    server: RunningServer,
    client: httpx.Client,
    method: str,
    path: str,
    parameters: dict[str, str],
    status: int,
    told: str,
) -> None:
    answer = client.request(method, path, params=parameters)
    assert (answer.status_code, answer.json()["code"]) == (status, status)
    assert told in answer.json()["message"]
    assert list(in_workers(server).values()) == [{}] * 2


def test_a_list_has_pages(client: httpx.Client) -> None:
    for number in range(3):
        register(client, f"a{number}", "/a")
    assert register(client, "a1", "/b").status_code == 409
    page = client.get("/models/own/adapters", params={"limit": "2"}).json()
    assert ([one["name"] for one in page["adapters"]], page["nextPageToken"]) == (["a0", "a1"], "2")
    page = client.get("/models/own/adapters", params={"limit": "2", "next_page_token": "2"}).json()
    assert ([one["name"] for one in page["adapters"]], "nextPageToken" in page) == (["a2"], False)


def test_strangers_change_no_adapters(server: RunningServer, client: httpx.Client) -> None:
    answer = client.post(
        "/models/own/adapters", params={"name": "a", "src": "/a"}, headers={"forwarded": "for=1.2.3.4"}
    )
    assert (answer.status_code, answer.json()["type"]) == (403, "ForbiddenException")
