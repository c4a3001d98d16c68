"""NVIDIA's own client against a live server, and the document's curl commands."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from djl_python.testing import FAKE_ENGINE, RunningServer, running_server, write_byte_tokenizer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Two models that repeat their prompts, byte by byte."""
    folder = tmp_path_factory.mktemp("models")
    specs = []
    for name, version in (("echo", ""), ("mymodel", "3")):
        path = write_byte_tokenizer(folder / name)
        (path / "serving.properties").write_text(f"option.model_id={path}\noption.rolling_batch={FAKE_ENGINE}\n")
        specs += ["-m", f"{name}:{version}={path}"]
    with running_server(*specs) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Any]:
    with triton.InferenceServerClient(server.url.removeprefix("http://")) as triton_client:
        yield triton_client


def text_input(texts: list[str], *, binary: bool) -> Any:
    given = triton.InferInput("text_input", [len(texts)], "BYTES")
    given.set_data_from_numpy(np.array(texts, dtype=np.object_), binary_data=binary)
    return given


def max_tokens(count: int) -> Any:
    given = triton.InferInput("max_tokens", [1], "INT32")
    given.set_data_from_numpy(np.array([count], dtype=np.int32))
    return given


def test_the_server_and_its_models(client: Any) -> None:
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("echo") and client.is_model_ready("mymodel", "3")
    assert not client.is_model_ready("mymodel", "4") and not client.is_model_ready("unknown")
    assert client.get_server_metadata()["name"] == "djl-serving"
    metadata = client.get_model_metadata("mymodel")
    assert metadata["versions"] == ["3"] and metadata["inputs"][0]["datatype"] == "BYTES"
    assert client.get_model_config("echo")["backend"] == "djl_python"
    assert [entry["state"] for entry in client.get_model_repository_index()] == ["READY", "READY"]
    with pytest.raises(InferenceServerException, match="there is no model 'unknown'; loaded: echo, mymodel") as caught:
        client.get_model_metadata("unknown")
    assert caught.value.status() == "404"


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [None, True, False])
def test_infer(client: Any, binary_in: bool, binary_out: bool | None) -> None:
    outputs = None if binary_out is None else [triton.InferRequestedOutput("text_output", binary_data=binary_out)]
    result = client.infer(
        "echo", [text_input(["grüße"], binary=binary_in), max_tokens(4)], request_id="7", outputs=outputs
    )
    assert result.get_response()["id"] == "7" and result.get_response()["model_version"] == "1"
    assert [_text(value) for value in result.as_numpy("text_output")] == ["grü"]


def test_infer_of_several_prompts_with_request_parameters(client: Any) -> None:
    texts = ["one", "two", "three"]
    result = client.infer("mymodel", [text_input(texts, binary=True)], "3", parameters={"max_tokens": 3})
    assert [_text(value) for value in result.as_numpy("text_output")] == ["one", "two", "thr"]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_infer_of_a_compressed_request(client: Any, algorithm: str) -> None:
    result = client.infer(
        "echo", [text_input(["grüße"], binary=True), max_tokens(4)], request_compression_algorithm=algorithm
    )
    assert [_text(value) for value in result.as_numpy("text_output")] == ["grü"]


def test_infer_at_once(client: Any) -> None:
    calls = [client.async_infer("echo", [text_input([f"call {n}"], binary=True), max_tokens(6)]) for n in range(4)]
    assert [_text(call.get_result().as_numpy("text_output")[0]) for call in calls] == [f"call {n}" for n in range(4)]


def test_refusals_are_the_clients_exception(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="max_tokens: expected an integer >= 1, got 0") as caught:
        client.infer("echo", [text_input(["a"], binary=True), max_tokens(0)])
    assert caught.value.status() == "400"
    with pytest.raises(InferenceServerException, match="model 'mymodel' has no version '9'") as caught:
        client.infer("mymodel", [text_input(["a"], binary=True)], "9")
    assert caught.value.status() == "404"


def test_statistics_count_what_was_answered(client: Any) -> None:
    before = client.get_inference_statistics("echo")["model_stats"][0]
    client.infer("echo", [text_input(["a"], binary=True), max_tokens(1)])
    after = client.get_inference_statistics("echo")["model_stats"][0]
    assert after["inference_count"] == before["inference_count"] + 1
    assert after["inference_stats"]["success"]["ns"] > before["inference_stats"]["success"]["ns"]
    assert after["last_inference"] >= before["last_inference"]
    assert [model["name"] for model in client.get_inference_statistics()["model_stats"]] == ["echo", "mymodel"]


def test_a_model_is_unloaded_and_loaded_again(client: Any) -> None:
    client.load_model("mymodel")  # is loaded: nothing happens
    client.unload_model("mymodel")
    assert not client.is_model_ready("mymodel")
    states = {entry["name"]: entry["state"] for entry in client.get_model_repository_index()}
    assert states == {"echo": "READY", "mymodel": "UNAVAILABLE"}
    with pytest.raises(InferenceServerException, match="there is no model 'mymodel'"):
        client.infer("mymodel", [text_input(["a"], binary=True)])
    client.load_model("mymodel")
    assert client.is_model_ready("mymodel")
    assert client.infer("mymodel", [text_input(["a"], binary=True), max_tokens(1)]).as_numpy("text_output") == [b"a"]
    with pytest.raises(InferenceServerException, match="no model 'unknown' to load"):
        client.load_model("unknown")


def test_the_documents_curl_command(server: RunningServer) -> None:
    """With curl's own content-type, which is not JSON."""
    body = '{"id": "42", "text_input": "client input", "parameters": {"stream": false, "temperature": 0}}'
    url = f"{server.url}/v2/models/mymodel/generate"
    done = subprocess.run(["curl", "-sS", "-X", "POST", url, "-d", body], capture_output=True, check=True, timeout=20)
    assert json.loads(done.stdout) == {
        "id": "42",
        "model_name": "mymodel",
        "model_version": "3",
        "text_output": "client inputclient inputclient",
    }


def test_a_stream(server: RunningServer) -> None:
    body = {"text_input": "hello", "parameters": {"max_tokens": 5, "stream": True}}
    answer = httpx.post(f"{server.url}/v2/models/echo/versions/1/generate_stream", json=body)
    assert answer.status_code == 200 and answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n")[:-1]]
    assert "".join(event["text_output"] for event in events) == "hello" and len(events) == 5
    assert {(event["model_name"], event["model_version"]) for event in events} == {("echo", "1")}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error"),
    [
        ("POST", "/v2/models/echo/generate_stream", {"text_input": 1}, 400, "text_input: expected a non-empty string"),
        ("POST", "/v2/models/none/generate", {"text_input": "a"}, 404, "there is no model 'none'"),
        ("POST", "/v2/models/echo/versions/2/generate", {"text_input": "a"}, 404, "has no version '2'"),
        ("GET", "/v2/models/echo/generate", None, 405, "does not take GET"),
        ("POST", "/v2", None, 405, "does not take POST"),
    ],
)
def test_errors_before_the_first_response(
    server: RunningServer, method: str, path: str, body: Any, status: int, error: str
) -> None:
    answer = httpx.request(method, f"{server.url}{path}", json=body)
    assert answer.status_code == status and answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"error"} and error in answer.json()["error"]


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
