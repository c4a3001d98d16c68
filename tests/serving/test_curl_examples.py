"""The requests that the documents show, as they show them but for the host, through curl's own shell words."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from djl_python.testing import RunningServer, running_server
from tests.conftest import DEMO

#: LMI's inference schema. Its examples have a comma too many.
LMI_ROLLING = """
curl -X POST https://my.sample.endpoint.com/invocations \\
  - H 'Content-Type: application/json' \\
  - d '
    {
        "inputs" : "What is Deep Learning?", 
        "parameters" : {
            "do_sample": true,
            "max_new_tokens": 256,
            "details": true,
        },
        "stream": true, 
    }'
"""  # noqa: W291
LMI_DYNAMIC = """
curl -X POST https://my.sample.endpoint.com/invocations \\
  - H 'Content-Type: application/json' \\
  - d '
    {
        "inputs" : "What is Deep Learning?", 
        "parameters" : {
            "do_sample": true,
            "max_new_tokens": 256,
        }
    }'
"""  # noqa: W291
#: LMI's chat completions schema.
LMI_CHAT = """
curl -X POST https://my.sample.endpoint.com/v1/chat/completions \\
  -H "Content-type: application/json" \\
  -d '{
    "messages": [
      {
        "role": "system",
        "content": "You are a helpful assistant."
      },
      {
        "role": "user",
        "content": "What is deep learning?"
      }
    ],
    "logprobs":true,
    "top_logprobs":1,
    "max_tokens":256
  }'
"""
#: Triton's generate extension.
TRITON = """
curl -X POST localhost:8000/v2/models/mymodel/generate \\
  -d '{"id": "42", "text_input": "client input", "parameters": {"stream": false, "temperature": 0}}'
"""
_HOSTS = ("https://my.sample.endpoint.com", "localhost:8000")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """The demo model, under the name that Triton's document has for a model."""
    with running_server("-m", f"mymodel={DEMO}", environment={"OPTION_THREADS": "1"}) as running:
        yield running


def run(server: RunningServer, command: str, *, repaired: bool = False) -> tuple[int, str, str]:
    """(status, content type, body) of a document's command; `repaired`: without the commas too many."""
    words = shlex.split(command.replace("\\\n", " ").replace("- H", "-H").replace("- d", "-d"))
    for host in _HOSTS:
        words = [word.replace(host, server.url) for word in words]
    if repaired:
        words = [re.sub(r",(\s*})", r"\1", word) for word in words]
    report = ["-s", "-S", "-w", "\\n%{http_code} %{content_type}"]
    done = subprocess.run([*words, *report], capture_output=True, text=True, check=True, timeout=60)
    body, _, told = done.stdout.rpartition("\n")
    status, _, content_type = told.partition(" ")
    return int(status), content_type, body


@pytest.mark.parametrize("command", [LMI_ROLLING, LMI_DYNAMIC])
def test_invalid_json_is_refused_in_the_schemas_form(server: RunningServer, command: str) -> None:
    status, content_type, body = run(server, command)
    assert (status, content_type) == (424, "application/json")
    assert set(json.loads(body)) == {"error", "code"}
    assert "JSON" in json.loads(body)["error"]


def test_lmi_as_a_stream(server: RunningServer) -> None:
    status, content_type, body = run(server, LMI_ROLLING, repaired=True)
    assert (status, content_type) == (200, "application/jsonlines")
    lines = [json.loads(line) for line in body.splitlines()]
    assert all(line["token"].keys() - {"special_token"} == {"id", "text", "log_prob"} for line in lines)
    *before, last = lines
    assert all(line.keys() == {"token"} for line in before)
    assert last.keys() == {"token", "generated_text", "details"}
    assert last["details"].keys() == {"finish_reason", "generated_tokens", "inputs"}
    assert last["details"]["generated_tokens"] == len(lines)
    assert last["generated_text"] == "".join(line["token"]["text"] for line in lines)


def test_lmi_as_a_whole(server: RunningServer) -> None:
    status, content_type, body = run(server, LMI_DYNAMIC, repaired=True)
    assert (status, content_type) == (200, "application/json")
    answer = json.loads(body)
    assert answer.keys() == {"generated_text"} and answer["generated_text"]


def test_a_chat(server: RunningServer) -> None:
    status, content_type, body = run(server, LMI_CHAT)
    assert (status, content_type) == (200, "application/json")
    answer: Any = json.loads(body)
    assert {"id", "object", "created", "choices", "usage"} <= answer.keys()
    (choice,) = answer["choices"]
    assert choice.keys() == {"index", "message", "logprobs", "finish_reason"}
    tokens = choice["logprobs"]["content"]
    assert len(tokens) == answer["usage"]["completion_tokens"]
    said = b"".join(bytes(token["bytes"]) for token in tokens).decode()
    assert said.removesuffix("<|im_end|>") == choice["message"]["content"]  # the token that ends it has a name too
    assert all(token["top_logprobs"][0]["logprob"] >= token["logprob"] for token in tokens)


def test_triton(server: RunningServer) -> None:
    status, content_type, body = run(server, TRITON)
    assert (status, content_type) == (200, "application/json")
    answer = json.loads(body)
    text = answer.pop("text_output")
    assert answer == {"id": "42", "model_name": "mymodel", "model_version": "1"}
    assert text and "client input" not in text
