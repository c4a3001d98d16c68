"""Reasoning is split off, in OpenAI's chats and in LMI's. The model repeats what it is told to say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from djl_python.testing import FAKE_ENGINE, running_server, write_byte_tokenizer

#: Writes the last message and nothing else, unless it begins the reasoning, or ends it.
TEMPLATE = (
    "{# <tool_call> #}{% if tools %}{% endif %}{{ messages[-1].content }}"
    "{% if enable_thinking is defined %}<think>\n{{ '' if enable_thinking else '\n</think>\n\n' }}{% endif %}"
)
SAID = "<think>\nHm, <tool_call> né?\n</think>\n\nYes."
REASONING, CONTENT = "Hm, <tool_call> né?", "Yes."
TOOLS = [{"type": "function", "function": {"name": "now"}}]
OPENAI, LMI = "/v1/chat/completions", "/predictions/thinks"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    store = tmp_path_factory.mktemp("models")
    model(store / "thinks", "option.reasoning_parser=qwen3")
    model(store / "implied", "option.enable_reasoning=True", "option.reasoning_parser=deepseek_r1")
    model(store / "silent", "option.enable_reasoning=false", "option.reasoning_parser=qwen3")
    with running_server("-s", str(store)) as running, httpx.Client(base_url=running.url, timeout=60) as client:
        yield client


def model(path: Path, *options: str) -> None:
    write_byte_tokenizer(path)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    lines = (f"option.model_id={path}", f"option.rolling_batch={FAKE_ENGINE}", *options)
    (path / "serving.properties").write_text("\n".join(lines))


def asked(text: str, name: str = "thinks", **options: Any) -> dict[str, Any]:
    """What makes the model say this once."""
    said = {"messages": [{"role": "user", "content": text}], "max_tokens": len(text.encode())}
    return {"model": name, **said, **options}


def post(server: httpx.Client, path: str, body: Any) -> httpx.Response:
    answer = server.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer


def message(server: httpx.Client, path: str, body: Any) -> dict[str, Any]:
    reply: dict[str, Any] = post(server, path, body).json()["choices"][0]["message"]
    return reply


def deltas(server: httpx.Client, path: str, body: Any) -> list[dict[str, Any]]:
    lines = post(server, path, {**body, "stream": True}).text.splitlines()
    chunks = (line.removeprefix("data: ") for line in lines if line and "[DONE]" not in line)
    return [choice["delta"] for chunk in chunks for choice in json.loads(chunk)["choices"]]


def joined(parts: list[dict[str, Any]], name: str) -> str:
    return "".join(delta.get(name) or "" for delta in parts)


@pytest.mark.parametrize("path", [OPENAI, LMI])
def test_an_answer_whole_and_streamed(server: httpx.Client, path: str) -> None:
    whole = post(server, path, asked(SAID)).json()
    reply = whole["choices"][0]["message"]
    assert (reply["reasoning_content"], reply["reasoning"], reply["content"]) == (REASONING, REASONING, CONTENT)
    tokens = len(SAID.encode())
    marked = len(SAID.split("\n\nYes")[0].encode())
    assert whole["usage"]["completion_tokens"] == tokens
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": marked}
    pieces = deltas(server, path, asked(SAID))
    for name in ("reasoning_content", "reasoning"):
        assert joined(pieces, name) == REASONING
    assert joined(pieces, "content") == CONTENT
    assert pieces[0]["role"] == "assistant" and "role" not in pieces[1]
    for piece in pieces:
        assert piece["reasoning"] == piece["reasoning_content"]  # there, or null
        assert "content" not in piece or piece["reasoning"] is None
    assert sum(piece["reasoning"] is not None for piece in pieces) > 5


@pytest.mark.parametrize("path", [OPENAI, LMI])
def test_wherever_a_limit_ends_it_a_stream_says_the_same(server: httpx.Client, path: str) -> None:
    for length in range(1, len(SAID.encode()), 3):
        body = asked(SAID, max_tokens=length)
        reply = message(server, path, body)
        pieces = deltas(server, path, body)
        assert joined(pieces, "reasoning") == (reply["reasoning"] or "")
        assert joined(pieces, "content") == (reply["content"] or "")
        if len("<think>") <= length < SAID.index("</think>"):
            assert (reply["content"] or "") == "" and REASONING.startswith((reply["reasoning"] or "").rstrip())


def test_an_answer_that_ends_within_its_reasoning_has_no_content(server: httpx.Client) -> None:
    completion = post(server, OPENAI, asked(SAID, max_tokens=15)).json()
    assert completion["choices"][0]["message"]["content"] is None
    assert completion["choices"][0]["message"]["reasoning"] == "Hm, <to"
    assert completion["usage"]["completion_tokens_details"]["reasoning_tokens"] == 15
    # And it can be sent back as it is.
    again = asked("Hi")
    again["messages"] = [completion["choices"][0]["message"], *again["messages"]]
    assert message(server, OPENAI, again)["content"] == "Hi"


@pytest.mark.parametrize(
    ("name", "text", "options", "reasoning", "content"),
    [
        ("thinks", "Yes </think> no", {}, None, "Yes </think> no"),
        ("thinks", "Hm</think>Yes", {"chat_template_kwargs": {"enable_thinking": True}}, "Hm", "Yes"),
        ("thinks", "Hm</think>Yes", {"chat_template_kwargs": {"enable_thinking": False}}, None, "Hm</think>Yes"),
        ("implied", "Hm</think>Yes", {}, "Hm", "Yes"),
        ("implied", "Hm", {}, "Hm", None),
        ("implied", "Hm</think>Yes", {"chat_template_kwargs": {"enable_thinking": False}}, None, "Hm</think>Yes"),
    ],
)
def test_a_prompt_may_begin_the_reasoning_or_end_it(
    server: httpx.Client, name: str, text: str, options: Any, reasoning: str | None, content: str | None
) -> None:
    reply = message(server, OPENAI, asked(text, name, **options))
    assert (reply["reasoning_content"], reply["content"]) == (reasoning, content)


def test_a_response_has_the_reasoning_as_an_item_of_its_own(server: httpx.Client) -> None:
    body = {"model": "thinks", "input": SAID, "max_output_tokens": len(SAID.encode()), "store": False}
    whole = post(server, "/v1/responses", body).json()
    reasoning, said = whole["output"]
    assert (reasoning["type"], reasoning["content"][0]["text"]) == ("reasoning", REASONING)
    assert (said["type"], said["content"][0]["text"]) == ("message", CONTENT)
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 5
    streamed = post(server, "/v1/responses", body | {"stream": True}).text
    made = [json.loads(line.removeprefix("data: ")) for line in streamed.splitlines() if line.startswith("data: ")]
    for kind, text in (("reasoning_text", REASONING), ("output_text", CONTENT)):
        assert "".join(one["delta"] for one in made if one["type"] == f"response.{kind}.delta") == text


def test_a_model_without_a_reasoning_parser_answers_unsplit(server: httpx.Client) -> None:
    completion = post(server, OPENAI, asked(SAID, "silent")).json()
    assert completion["choices"][0]["message"] == {"role": "assistant", "content": SAID, "refusal": None}
    assert "completion_tokens_details" not in completion["usage"]
    assert all("reasoning" not in piece for piece in deltas(server, OPENAI, asked(SAID, "silent")))
    plain = {"inputs": SAID, "parameters": {"max_new_tokens": len(SAID.encode())}}
    assert post(server, LMI, plain).json()["generated_text"] == SAID


@pytest.mark.parametrize("path", [OPENAI, LMI])
def test_calls_come_after_reasoning_and_not_in_it(server: httpx.Client, path: str) -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {"x": 1}}\n</tool_call>'
    text = f"<think>Should I {call}?</think>\n\nSo: {call}"
    reply = message(server, path, asked(text, tools=TOOLS))
    assert (reply["reasoning"], reply["content"]) == (f"Should I {call}?", "So:")
    assert [one["function"]["arguments"] for one in reply["tool_calls"]] == ['{"x": 1}']
    pieces = deltas(server, path, asked(text, tools=TOOLS))
    assert (joined(pieces, "reasoning"), joined(pieces, "content")) == (f"Should I {call}?", "So:")
    calls = [one["function"].get("arguments", "") for piece in pieces for one in piece.get("tool_calls", [])]
    assert "".join(calls) == '{"x": 1}'


def test_stop_sequences_count_in_reasoning_too(server: httpx.Client) -> None:
    (choice,) = post(server, OPENAI, asked(SAID, stop=["né"])).json()["choices"]
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("Hm, <tool_call> ", None)
    assert choice["finish_reason"] == "stop"
    (choice,) = post(server, OPENAI, asked(SAID, stop=["es"])).json()["choices"]
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == (REASONING, "Y")


@pytest.mark.parametrize("stream", [False, True])
def test_every_token_has_its_logprob(server: httpx.Client, stream: bool) -> None:
    answer = post(server, OPENAI, asked(SAID, logprobs=True, stream=stream)).text
    objects = [json.loads(line.removeprefix("data: ")) for line in answer.splitlines() if line and "[DONE]" not in line]
    entries = [entry for one in objects for entry in one["choices"][0]["logprobs"]["content"]]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == SAID


def test_several_answers_have_their_reasoning_each(server: httpx.Client) -> None:
    completion = post(server, OPENAI, asked(SAID, n=2)).json()
    assert [one["message"]["reasoning"] for one in completion["choices"]] == [REASONING] * 2
    marked = len(SAID.split("\n\nYes")[0].encode())
    assert completion["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2 * marked}


@pytest.mark.parametrize("path", [OPENAI, LMI])
@pytest.mark.parametrize(
    ("wish", "begun"),
    [
        ({"thinking_token_budget": 12}, "<think>"),
        ({"thinking_budget": 12}, "<think>"),
        ({"thinking": {"type": "enabled", "budget_tokens": 12}}, ""),  # the template begins the reasoning
    ],
)
def test_a_budget_ends_the_reasoning(server: httpx.Client, path: str, wish: dict[str, Any], begun: str) -> None:
    answer = post(server, path, asked(f"{begun}Hm, is it so? Hm, is it so?", **wish))
    assert "x-ignored-parameters" not in answer.headers
    assert answer.json()["usage"]["completion_tokens_details"] == {"reasoning_tokens": 12 + len("</think>")}


@pytest.mark.parametrize(("kind", "reasoning"), [("enabled", "Hm"), ("disabled", None), ("adaptive", None)])
def test_thinking_switches_the_reasoning(server: httpx.Client, kind: str, reasoning: str | None) -> None:
    answer = post(server, OPENAI, asked("Hm</think>Yes", thinking={"type": kind}))
    assert answer.json()["choices"][0]["message"]["reasoning"] == reasoning
    assert "x-ignored-parameters" not in answer.headers


def test_the_official_client_reads_every_piece(server: httpx.Client) -> None:
    with openai.OpenAI(base_url=str(server.base_url.join("/v1")), api_key="none") as client:
        pieces = client.chat.completions.create(
            model="thinks", messages=[{"role": "user", "content": SAID}], max_tokens=len(SAID.encode()), stream=True
        )
        parts = [piece.choices[0].delta for piece in pieces if piece.choices]
    assert "".join((delta.model_extra or {})["reasoning_content"] or "" for delta in parts) == REASONING
    assert "".join(delta.content or "" for delta in parts) == CONTENT
