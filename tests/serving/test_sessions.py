"""Stateful sessions through the server: the built-in handler opens and closes them, a model.py keeps values in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from djl_python.testing import FAKE_ENGINE, running_server, write_byte_tokenizer

SESSION = "X-Amzn-SageMaker-Session-Id"
CLOSED = "X-Amzn-SageMaker-Closed-Session-Id"
NEW: Final[Any] = {"requestType": "NEW_SESSION"}
CLOSE: Final[Any] = {"requestType": "CLOSE"}
COUNTER = """
from djl_python import Output
from djl_python.session_manager import SessionManager


def handle(inputs):
    if inputs.is_empty():
        return None
    sessions = SessionManager(inputs.get_properties())
    answer = sessions.respond(inputs)
    if answer is not None:
        return answer
    session = sessions.get_session(inputs.get_property("X-Amzn-SageMaker-Session-Id"))
    turns = session.get("turns", 0) + 1
    session.put("turns", turns)
    return Output().add_property("X-Turns", turns).add_as_json({"turns": turns})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sessions")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    store = folder / "models"
    echo = write_byte_tokenizer(store / "echo")
    common = f"option.model_id={echo}\noption.rolling_batch={FAKE_ENGINE}\noption.async_mode=true\n"
    (echo / "serving.properties").write_text(
        f"{common}option.sessions_path={folder}/echo\noption.sessions_expiration=3600\n"
    )
    none = store / "none"
    none.mkdir()
    (none / "serving.properties").write_text(f"{common}option.enable_stateful_sessions=false\n")
    counter = store / "counter"
    counter.mkdir()
    (counter / "model.py").write_text(COUNTER)
    (counter / "serving.properties").write_text(f"minWorkers=2\noption.sessions_path={folder}/counter\n")
    few = store / "few"
    few.mkdir()
    (few / "serving.properties").write_text(f"{common}option.sessions_path={folder}/few\noption.max_sessions=1\n")
    with running_server("-s", str(store)) as running, httpx.Client(base_url=running.url, timeout=60) as client:
        yield client


def opened(client: httpx.Client, model: str) -> str:
    answer = client.post(f"/predictions/{model}", json=NEW, headers={SESSION: "NEW_SESSION"})
    assert answer.status_code == 200, answer.text
    match = re.fullmatch(r"([0-9a-f-]{36}); Expires=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", answer.headers[SESSION])
    assert match is not None
    assert answer.json() == {"result": f"Session {match[1]} created"}
    return match[1]


def test_the_built_in_handler_answers_in_a_session(client: httpx.Client, folder: Path) -> None:
    session_id = opened(client, "echo")
    assert (folder / "echo" / session_id).is_dir()
    body: Any = {"inputs": "Hi.", "parameters": {"max_new_tokens": 3}}
    answer = client.post("/predictions/echo", json=body, headers={SESSION: session_id})
    assert (answer.status_code, answer.json()) == (200, {"generated_text": "Hi."})
    closed = client.post("/predictions/echo", json=CLOSE, headers={SESSION: session_id})
    assert (closed.status_code, closed.headers[CLOSED]) == (200, session_id)
    assert not (folder / "echo" / session_id).exists()
    for again in (CLOSE, body):
        refused = client.post("/predictions/echo", json=again, headers={SESSION: session_id})
        assert refused.status_code == 424 and "there is no session" in refused.json()["error"]


def test_an_unknown_session_is_refused_in_lmis_shape(client: httpx.Client) -> None:
    refused = client.post("/predictions/echo", json=CLOSE, headers={SESSION: "../../../etc"})
    assert refused.status_code == 424
    assert refused.json() == {
        "error": "X-Amzn-SageMaker-Session-Id: there is no session '../../../etc', or it has expired",
        "code": 424,
    }
    for body in (NEW, {"inputs": "Hi."}):
        refused = client.post("/predictions/none", json=body, headers={SESSION: "NEW_SESSION"})
        assert refused.status_code == 424 and "option.enable_stateful_sessions=false" in refused.json()["error"]
    body = {"inputs": "Hi.", "parameters": {"max_new_tokens": 3}}
    assert client.post("/predictions/none", json=body).json() == {"generated_text": "Hi."}


def test_more_sessions_than_there_may_be_are_refused(client: httpx.Client) -> None:
    session_id = opened(client, "few")
    refused = client.post("/predictions/few", json=NEW, headers={SESSION: "NEW_SESSION"})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json() == {
        "code": 503,
        "type": "WlmCapacityException",
        "message": "1 sessions are open, and option.max_sessions allows 1; try again when others are closed",
    }
    assert client.post("/predictions/few", json=CLOSE, headers={SESSION: session_id}).status_code == 200
    opened(client, "few")


def test_other_apis_have_no_sessions(client: httpx.Client) -> None:
    body = {"model": "echo", "prompt": "Hi.", "max_tokens": 3}
    assert client.post("/v1/completions", json=body, headers={SESSION: "mine"}).status_code == 200


def test_a_handler_keeps_values_in_a_session_whichever_worker_answers(client: httpx.Client) -> None:
    one, two = opened(client, "counter"), opened(client, "counter")
    for turn in range(1, 5):
        answer = client.post("/predictions/counter", json={"inputs": "x"}, headers={SESSION: one})
        assert (answer.headers["x-turns"], answer.json()) == (str(turn), {"turns": turn})
    assert client.post("/predictions/counter", json={}, headers={SESSION: two}).json() == {"turns": 1}
    assert client.post("/predictions/counter", json=CLOSE, headers={SESSION: one}).headers[CLOSED] == one
    refused = client.post("/predictions/counter", json={}, headers={SESSION: one})
    assert refused.status_code == 424 and "there is no session" in refused.json()["error"]
