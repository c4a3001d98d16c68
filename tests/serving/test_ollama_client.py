"""Ollama's own client against the demo model: whatever it sends is answered, and it reads every answer."""

from __future__ import annotations

from collections.abc import Iterator

import ollama
import pytest

from djl_python.testing import RunningServer

QUESTION = [{"role": "user", "content": "What is deep learning?"}]


@pytest.fixture(scope="module")
def client(demo: RunningServer) -> Iterator[ollama.Client]:
    with ollama.Client(host=demo.url) as client:
        yield client


def test_a_stream_says_what_the_whole_answer_says(client: ollama.Client) -> None:
    options = {"num_predict": 20, "temperature": 0}
    whole = client.chat("demo", messages=QUESTION, options=options)
    pieces = list(client.chat("demo:latest", messages=QUESTION, options=options, stream=True))
    text = "".join(piece.message.content or "" for piece in pieces)
    assert text == whole.message.content and len(text.split()) > 5
    assert pieces[-1].done and pieces[-1].done_reason == whole.done_reason == "length"
    assert whole.eval_count == 20 and (whole.total_duration or 0) >= (whole.eval_duration or 0) > 0
    assert client.generate("demo", QUESTION[0]["content"], options=options).response == text


def test_a_format_is_followed(client: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Bern", "Rome"]}}, "required": ["city"]}
    answer = client.chat("demo", messages=QUESTION, format=schema, options={"num_predict": 100})
    assert answer.message.content in ('{"city":"Bern"}', '{"city": "Bern"}', '{"city":"Rome"}', '{"city": "Rome"}')


def test_models_are_listed_shown_and_loaded(client: ollama.Client) -> None:
    assert [listed.model for listed in client.list().models] == ["demo:latest"]
    assert [loaded.model for loaded in client.ps().models] == ["demo:latest"]
    shown = client.show("demo")
    assert shown.capabilities == ["completion"]  # its chat template shows it no tools
    assert shown.details is not None and shown.modelinfo is not None
    assert (shown.details.format, shown.details.family, shown.details.parameter_size) == (
        "safetensors",
        "llama",
        "2.89M",
    )
    assert shown.modelinfo["llama.block_count"] == 4 and "<|im_start|>" in (shown.template or "")
    assert client.generate("demo").done_reason == "load"


def test_errors_raise_the_clients_own(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="expected a number >= 0"):
        client.chat("demo", messages=QUESTION, options={"temperature": -1})
    with pytest.raises(ollama.ResponseError, match="for text-generation"):
        client.embed("demo", "a")
    with pytest.raises(ollama.ResponseError, match="demo does not support insert"):
        client.generate("demo", "a", suffix="b")
    with pytest.raises(ollama.ResponseError, match="push: not served"):
        client.push("demo")
