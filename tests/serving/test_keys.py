"""API keys of a real server with real workers: tokens, sessions, the clients of this project, a file that changes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from djl_python.core.access.api_key import ApiKey, digest
from djl_python.core.access.scopes import Scope
from djl_python.server.keys.key_file import add_key, remove_keys
from djl_python.testing import FAKE_ENGINE, RunningServer, running_server, write_byte_tokenizer

SESSION: Final = "X-Amzn-SageMaker-Session-Id"
NEW: Final[Any] = {"requestType": "NEW_SESSION"}
NAMES: Final = {"a": Scope.INFER, "b": Scope.INFER, "operator": Scope.MANAGE, "metrics": Scope.METRICS}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.jsonl"
    for name, scope in NAMES.items():
        add_key(path, ApiKey(name=name, sha256=digest(f"djl_{name}"), scopes=(scope,)))
    add_key(path, ApiKey(name="few", sha256=digest("djl_few"), scopes=(Scope.INFER,), tokens_in_flight=100))
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    echo = write_byte_tokenizer(folder / "echo")
    (echo / "serving.properties").write_text(
        f"option.model_id={echo}\noption.rolling_batch={FAKE_ENGINE}\noption.fake_step_ms=5\n"
        f"option.sessions_path={folder}/sessions\n"
    )
    environment = {
        "SERVING_API_KEYS": str(keys),
        "SERVING_METRICS_ACCESS": "key",
        "DJL_SERVING_API_KEY": "djl_1, djl_2",
    }
    with running_server("-m", f"echo={echo}", environment=environment) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60, verify=False) as client:
        yield client


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer djl_{name}"}


def counted(client: httpx.Client, name: str, kind: str) -> float:
    """Tokens of a key, as /metrics tells them."""
    start = f'djl_key_tokens_total{{key="{name}",kind="{kind}"}} '
    lines = client.get("/metrics", headers=bearer("metrics")).text.splitlines()
    return sum(float(line.removeprefix(start)) for line in lines if line.startswith(start))


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def complete(client: httpx.Client, name: str, **more: Any) -> httpx.Response:
    body = {"prompt": "abcdefgh", "max_tokens": 6, **more}
    return client.post("/v1/completions", json=body, headers=bearer(name))


def test_tokens_of_answers_are_counted(client: httpx.Client) -> None:
    usage = complete(client, "a").json()["usage"]
    assert (counted(client, "a", "prompt"), counted(client, "a", "generated")) == (
        *(usage["prompt_tokens"], usage["completion_tokens"]),
    )
    before = counted(client, "a", "generated")
    assert complete(client, "a", stream=True, n=2).status_code == 200
    assert counted(client, "a", "generated") == before + 12
    assert counted(client, "b", "generated") == 0


def test_tokens_of_an_answer_that_is_left_are_counted(client: httpx.Client) -> None:
    body = {"prompt": "abcdefgh", "max_tokens": 2000, "stream": True}
    with client.stream("POST", "/v1/completions", json=body, headers=bearer("b")) as answer:
        next(answer.iter_lines())
    until(lambda: counted(client, "b", "generated") > 0)
    assert counted(client, "b", "prompt") == 8


def test_tokens_in_flight_of_a_key_are_limited_while_they_are_generated(client: httpx.Client) -> None:
    body = {"prompt": "abcdefgh", "max_tokens": 2000, "stream": True}
    with client.stream("POST", "/v1/completions", json=body, headers=bearer("few")) as answer:
        until(lambda: counted(client, "few", "generated") > 128)  # before the answer has ended
        assert answer.status_code == 200
        refused = complete(client, "few")
        assert refused.status_code == 429
        assert "100 tokens in flight" in refused.json()["error"]["message"]
    until(lambda: complete(client, "few").status_code == 200)


def test_a_session_belongs_to_the_key_that_opened_it(client: httpx.Client) -> None:
    opened = client.post("/invocations", json=NEW, headers=bearer("a"))
    session = {SESSION: opened.headers[SESSION].partition(";")[0]}
    body = {"inputs": "hello", "parameters": {"max_new_tokens": 2}}
    for name, status in (("a", 200), ("b", 424), ("operator", 200)):
        answer = client.post("/invocations", json=body, headers={**bearer(name), **session})
        assert (answer.status_code == 200) == (status == 200), answer.text
    refused = client.post("/invocations", json={"requestType": "CLOSE"}, headers={**bearer("b"), **session})
    assert "there is no session" in refused.text
    assert client.post("/invocations", json={"requestType": "CLOSE"}, headers={**bearer("a"), **session}).is_success


def test_keys_of_the_environment(client: httpx.Client) -> None:
    assert [complete(client, name).status_code for name in ("1", "2", "3")] == [200, 200, 401]
    assert client.get("/models", headers=bearer("1")).status_code == 403


def test_a_key_that_is_revoked_opens_nothing_a_second_later(client: httpx.Client, keys: Path) -> None:
    add_key(keys, ApiKey(name="late", sha256=digest("djl_late"), scopes=(Scope.INFER,)))
    until(lambda: client.get("/v1/models", headers=bearer("late")).status_code == 200)
    remove_keys(keys, lambda key: key.name == "late")
    until(lambda: client.get("/v1/models", headers=bearer("late")).status_code == 401)


@pytest.mark.parametrize("variable", ["DJL_API_KEY", "DJL_SERVING_API_KEY"])
def test_our_own_clients_send_a_key(server: RunningServer, variable: str) -> None:
    command = [sys.executable, "-m", "djl_python", "run", server.url, "ab", "--completion", "--max-tokens", "2"]
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1 and "401" in refused.stderr and "DJL_API_KEY" in refused.stderr
    answered = subprocess.run(
        command, env={**environment, variable: "djl_a"}, capture_output=True, text=True, timeout=60
    )
    assert (answered.returncode, answered.stdout) == (0, "ab\n")


def test_no_secret_is_in_the_servers_output(client: httpx.Client, server: RunningServer) -> None:
    complete(client, "a")
    until(lambda: ' a "POST /v1/completions" 200' in server.output())
    assert not [name for name in (*NAMES, "1", "2") if f"djl_{name}" in server.output()]
