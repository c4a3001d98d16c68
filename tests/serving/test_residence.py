"""Two models in a server that has memory for one, with real workers: Ollama's client loads and unloads them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import httpx
import ollama
import pytest

from djl_python.testing import RunningServer, running_server
from tests.conftest import DEMO

#: Less than a loaded model has and another one is estimated to need, and more than either.
BUDGET = 640 << 20
OPTIONS = {"num_predict": 4, "temperature": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    arguments = ("-m", f"a={DEMO}", "-m", f"b={DEMO}", "--load-on-request", "--memory-budget", str(BUDGET))
    with running_server(*arguments, environment={"OPTION_THREADS": "1", "OPTION_KV_CACHE_MEMORY_MB": "64"}) as made:
        yield made


@pytest.fixture
def client(server: RunningServer) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url) as made:
        yield made


def loaded(client: ollama.Client) -> list[str | None]:
    return [model.model for model in client.ps().models]


def until(condition: Callable[[], bool]) -> None:
    """Poll what has no event."""
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.mark.slow
def test_a_load_makes_room_and_keep_alive_0_unloads(server: RunningServer, client: ollama.Client) -> None:
    assert loaded(client) == []
    first = client.generate("a", "What is", options=OPTIONS, keep_alive="5m").response
    (a,) = client.ps().models
    assert a.model == "a:latest" and BUDGET // 5 < (a.size or 0) < BUDGET
    assert a.expires_at is not None and a.expires_at.year < 2300
    assert client.generate("b", "What is", options=OPTIONS).response == first
    assert loaded(client) == ["b:latest"]
    pids = [worker["pid"] for worker in workers(server, "b")]
    assert client.generate("b", keep_alive=0).done_reason == "unload"
    until(lambda: loaded(client) == [])
    assert workers(server, "b") == [] and pids
    assert client.generate("a", "What is", options=OPTIONS).response == first


def workers(server: RunningServer, name: str) -> list[dict[str, object]]:
    (described,) = httpx.get(f"{server.url}/models/{name}").json()
    return [worker for group in described["models"][0]["workerGroups"] for worker in group["workers"]]
