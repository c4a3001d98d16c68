"""huggingface_hub, and curl as TGI's and MindIE's documents use it, against a running server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError

from djl_python.testing import RunningServer, running_server
from tests.conftest import DEMO
from tests.dialects.tgi.tgi_schema import DOCUMENT, check

PROMPT = "What is deep learning?"


@pytest.fixture(scope="module")
def hub(demo: RunningServer) -> InferenceClient:
    return InferenceClient(base_url=demo.url)


@pytest.fixture(scope="module")
def mindie() -> Iterator[RunningServer]:
    environment = {"OPTION_THREADS": "1", "OPTION_TGI_DIALECT": "mindie", "OPTION_FULL_TEXT_ENABLED": "true"}
    with running_server("-m", f"demo={DEMO}", environment=environment) as server:
        yield server


def curl(url: str, *arguments: str, body: Any = None) -> tuple[int, dict[str, str], str]:
    """(status, headers, body)."""
    sent = [] if body is None else ["-d", json.dumps(body), "-H", "Content-Type: application/json"]
    command = ["curl", "-s", "-S", "-i", *arguments, url, *sent]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    head, _, text = output.replace("\r\n", "\n").partition("\n\n")
    status, *lines = head.split("\n")
    return int(status.split()[1]), {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}, text


def events(text: str) -> list[Any]:
    return [json.loads(line.removeprefix("data:")) for line in text.splitlines() if line.startswith("data:")]


# ------------------------------------------------------------------------------------------------ huggingface_hub


def test_hub_text(hub: InferenceClient) -> None:
    text = hub.text_generation(PROMPT, max_new_tokens=8, do_sample=False)
    details = hub.text_generation(PROMPT, max_new_tokens=8, details=True, decoder_input_details=True)
    assert details.generated_text == text
    assert details.details is not None
    assert "".join(token.text for token in details.details.tokens) == text
    assert details.details.generated_tokens == len(details.details.tokens)
    assert "".join(token.text for token in details.details.prefill) == PROMPT
    assert details.details.prefill[0].logprob is None


def test_hub_stream(hub: InferenceClient) -> None:
    text = hub.text_generation(PROMPT, max_new_tokens=8)
    assert "".join(hub.text_generation(PROMPT, max_new_tokens=8, stream=True)) == text
    *_, last = hub.text_generation(PROMPT, max_new_tokens=8, stream=True, details=True, top_n_tokens=2)
    assert last.generated_text == text
    assert last.details is not None
    assert last.details.finish_reason in ("length", "eos_token")


def test_hub_refusals(hub: InferenceClient) -> None:
    for stream in (False, True):
        with pytest.raises(ValidationError, match="`temperature` must be strictly positive"):
            hub.text_generation(PROMPT, temperature=0, stream=stream, max_new_tokens=4)


def test_hub_chat(hub: InferenceClient) -> None:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 12, "temperature": 0}
    answer = hub.chat_completion(**asked, logprobs=True, top_logprobs=2)
    (choice,) = answer.choices
    assert choice.message.content
    assert choice.logprobs is not None
    assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
    options: Any = {"include_usage": True}
    streamed = list(hub.chat_completion(**asked, stream=True, stream_options=options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed[:-1]) == choice.message.content
    assert streamed[-1].usage.completion_tokens == answer.usage.completion_tokens == 12


@pytest.mark.parametrize("kind", ["json", "json_object", "json_schema", "regex"])
def test_hub_chat_in_a_format(hub: InferenceClient, kind: str) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    value = {"json_schema": {"name": "it", "schema": schema}} if kind == "json_schema" else {"value": schema}
    form: Any = {"type": kind, **({"value": "(yes|no)!"} if kind == "regex" else value)}
    answer = hub.chat_completion([{"role": "user", "content": PROMPT}], max_tokens=200, response_format=form)
    content = answer.choices[0].message.content
    assert content in ("yes!", "no!") if kind == "regex" else set(json.loads(content or "")) == {"ok"}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_hub_chat_with_tools(hub: InferenceClient, choice: Any) -> None:
    parameters = {"type": "object", "properties": {"days": {"enum": [1, 7]}}, "required": ["days"]}
    tools: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]
    asked: Any = {"messages": [{"role": "user", "content": PROMPT}], "tools": tools, "tool_choice": choice}
    (whole,) = hub.chat_completion(**asked, max_tokens=300, temperature=0).choices
    assert whole.finish_reason == "tool_calls"
    assert whole.message.tool_calls
    for call in whole.message.tool_calls:
        assert call.function.name == "get_weather"
        assert json.loads(call.function.arguments) in ({"days": 1}, {"days": 7})
    pieces = [
        call.function
        for chunk in hub.chat_completion(**asked, max_tokens=300, temperature=0, stream=True)
        for call in chunk.choices[0].delta.tool_calls or []
        if call.index == 0
    ]
    assert "".join(piece.arguments for piece in pieces) == whole.message.tool_calls[0].function.arguments


def test_hub_text_in_a_grammar(hub: InferenceClient) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    grammar: Any = {"type": "json", "value": schema}
    text = hub.text_generation(PROMPT, max_new_tokens=60, grammar=grammar)
    assert set(json.loads(text)) == {"ok"}
    broken: Any = {"type": "regex", "value": "(a"}
    for stream in (False, True):
        with pytest.raises(ValidationError, match="grammar is not valid: unclosed group"):
            hub.text_generation(PROMPT, max_new_tokens=60, grammar=broken, stream=stream)


def test_hub_info(demo: RunningServer) -> None:
    info = InferenceClient(provider="hf-inference").get_endpoint_info(model=demo.url)
    assert info.pop("engine")["runner"]
    check(info, "Info")
    assert info["max_input_tokens"] == info["max_total_tokens"] - 1
    assert InferenceClient(provider="hf-inference").health_check(model=demo.url)


# ------------------------------------------------------------------------------------------------ curl


def test_curl_generate(demo: RunningServer) -> None:
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 20, "details": True}}
    status, headers, text = curl(f"{demo.url}/generate", "-X", "POST", body=body)
    assert status == 200
    answer = json.loads(text)
    check(answer, "GenerateResponse")
    assert headers["x-compute-characters"] == str(len(PROMPT))
    assert int(headers["x-generated-tokens"]) == answer["details"]["generated_tokens"]
    assert float(headers["x-compute-time"]) > 0
    names = ("x-compute-type", "x-total-time", "x-validation-time", "x-queue-time", "x-inference-time")
    assert all(name in headers for name in (*names, "x-time-per-token", "x-prompt-tokens"))
    status, _, text = curl(demo.url, "-X", "POST", body=body)
    assert (status, [json.loads(text)[0]["generated_text"]]) == (200, [answer["generated_text"]])


def test_curl_stream(demo: RunningServer) -> None:
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 20, "details": True}}
    status, headers, text = curl(f"{demo.url}/generate_stream", "-N", "-X", "POST", body=body)
    assert status == 200
    assert headers["content-type"] == "text/event-stream"
    chunks = events(text)
    for event in chunks:
        check(event, "StreamResponse")
    assert [event["index"] for event in chunks] == list(range(1, len(chunks) + 1))
    assert chunks[-1]["details"]["generated_tokens"] == len(chunks)


def test_curl_the_documents_example(demo: RunningServer) -> None:
    """Every example value that has the type which the document says."""
    schemas = DOCUMENT["components"]["schemas"]
    types = {"string": str, "boolean": bool, "integer": int, "number": float, "array": list}
    given = {
        name: field["example"]
        for name, field in schemas["GenerateParameters"]["properties"].items()
        if "example" in field and type(field["example"]) is types[field["type"]] and field["example"] != "null"
    }
    body = {"inputs": schemas["GenerateRequest"]["properties"]["inputs"]["example"], "parameters": given}
    assert {"temperature", "top_n_tokens", "typical_p", "stop", "best_of"} <= given.keys()
    status, headers, text = curl(f"{demo.url}/generate", "-X", "POST", body=body)
    assert status == 200
    check(json.loads(text), "GenerateResponse")
    assert headers["x-ignored-parameters"] == "top_n_tokens,watermark"


def test_curl_refused_stream(demo: RunningServer) -> None:
    body = {"inputs": PROMPT, "parameters": {"best_of": 2}}
    status, headers, text = curl(f"{demo.url}/generate_stream", "-N", "-X", "POST", body=body)
    assert (status, headers["content-type"]) == (422, "text/event-stream")
    (event,) = events(text)
    check(event, "ErrorResponse")


def test_curl_tokenize(demo: RunningServer) -> None:
    text = "Caf\u00e9 \U0001f600 deep learning"
    status, _, answer = curl(f"{demo.url}/tokenize", "-X", "POST", body={"inputs": text})
    assert status == 200
    tokens = json.loads(answer)
    check(tokens, "TokenizeResponse")
    assert all(text[token["start"] : token["stop"]] == token["text"] for token in tokens)
    assert {at for token in tokens for at in range(token["start"], token["stop"])} == set(range(len(text)))


def test_curl_chat_tokenize(demo: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": PROMPT}]}
    status, _, answer = curl(f"{demo.url}/chat_tokenize", "-X", "POST", body=body)
    assert status == 200
    reply = json.loads(answer)
    check(reply["tokenize_response"], "TokenizeResponse")
    assert PROMPT in reply["templated_text"]


def test_curl_health(demo: RunningServer) -> None:
    for path in ("/health", "/"):
        status, headers, text = curl(demo.url + path)
        assert (status, headers["content-length"], text) == (200, "0", "")


def test_curl_metrics(demo: RunningServer) -> None:
    curl(f"{demo.url}/generate", "-X", "POST", body={"inputs": PROMPT, "parameters": {"max_new_tokens": 2}})
    status, _, text = curl(f"{demo.url}/metrics")
    assert status == 200
    for name in ("tgi_request_count", "tgi_request_success", "tgi_request_duration_sum", "tgi_queue_size"):
        assert f"\n{name}{{" in text
    generated = next(line for line in text.splitlines() if line.startswith("tgi_request_generated_tokens_count"))
    assert float(generated.split()[-1]) > 0


# ------------------------------------------------------------------------------------------------ MindIE

#: The document's example.
MINDIE_EXAMPLE = {
    "inputs": "My name is Olivier and I",
    "parameters": {
        "decoder_input_details": False,
        "details": True,
        "do_sample": True,
        "max_new_tokens": 20,
        "repetition_penalty": 1.03,
        "return_full_text": False,
        "seed": None,
        "temperature": 0.5,
        "top_k": 10,
        "top_p": 0.95,
        "truncate": None,
        "typical_p": 0.5,
        "watermark": False,
        "stop": None,
        "adapter_id": "None",
    },
}


def test_mindie_stream(mindie: RunningServer) -> None:
    status, headers, text = curl(f"{mindie.url}/generate_stream", "-N", "-X", "POST", body=MINDIE_EXAMPLE)
    assert status == 200
    assert headers["x-ignored-parameters"] == "typical_p"
    *before, last = events(text)
    for event in (*before, last):
        assert event.keys() == {"token", "generated_text", "details"}
        assert event["token"].keys() == {"id", "text", "logprob", "special"}
        assert event["token"]["logprob"] is event["token"]["special"] is None
        assert last["generated_text"].startswith(event["token"]["text"])
    assert all(event["generated_text"] is event["details"] is None for event in before)
    assert last["token"]["text"] == last["generated_text"]
    assert last["details"].keys() == {"prompt_tokens", "finish_reason", "generated_tokens", "seed"}
    assert last["details"]["generated_tokens"] == len(before) + 1


def test_mindie_leaves_the_other_paths_to_tgi(mindie: RunningServer) -> None:
    status, _, text = curl(f"{mindie.url}/generate", body={"inputs": PROMPT, "parameters": {"max_new_tokens": 2}})
    assert status == 200
    check(json.loads(text), "GenerateResponse")


def test_mindie_refusals(mindie: RunningServer) -> None:
    picture = {"type": "image_url", "image_url": "/xxxx/test.png"}
    for body, field in (
        ({"inputs": "a", "parameters": {"top_p": 1.0}}, "parameters.top_p"),
        ({"inputs": [{"type": "text", "text": "My name is Olivier and I"}, picture]}, "inputs[1]"),
        ({"inputs": "word " * 5000}, "`inputs`"),
    ):
        status, headers, text = curl(f"{mindie.url}/generate_stream", "-X", "POST", body=body)
        assert (status, headers["content-type"]) == (422, "application/json")
        shape = json.loads(text)
        check(shape, "ErrorResponse")
        assert shape["error"].startswith(f"Input validation error: {field}")
