"""OpenAI's own client's responses against the demo model: whatever it sends is answered, and it reads every answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import openai
import pydantic
import pytest
from openai.types.responses import FunctionToolParam, ResponseFunctionToolCall

from djl_python.testing import RunningServer

QUESTION = "What is deep learning?"
WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Bern", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Score(pydantic.BaseModel):
    """How good something is."""

    unit: Literal["percent", "points"]


@pytest.fixture(scope="module")
def client(demo: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_stream_says_what_the_whole_response_says(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="demo", max_output_tokens=20, input=QUESTION)
    with client.responses.stream(model="demo", max_output_tokens=20, input=QUESTION) as stream:
        made = list(stream)
    text = "".join(event.delta for event in made if event.type == "response.output_text.delta")
    assert made[-1].type == "response.incomplete"
    final = made[-1].response
    assert whole.output_text == final.output_text == text and len(text.split()) > 5
    assert whole.status == final.status == "incomplete"
    assert whole.incomplete_details is not None and whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage is not None and final.usage is not None
    assert whole.usage.input_tokens == final.usage.input_tokens > 0
    assert whole.usage.output_tokens == final.usage.output_tokens == 20
    counted = client.responses.input_tokens.count(model="demo", input=QUESTION)
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", whole.usage.input_tokens)
    assert [event.sequence_number for event in made] == list(range(len(made)))


def test_instructions_and_items_are_what_a_chat_of_them_is(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        model="demo",
        max_tokens=12,
        temperature=0,
        messages=[{"role": "system", "content": "Be short."}, {"role": "user", "content": QUESTION}],
    )
    response = client.responses.create(
        model="demo",
        max_output_tokens=12,
        temperature=0,
        instructions="Be short.",
        input=[{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}],
    )
    assert response.output_text == chat.choices[0].message.content != ""
    assert (response.instructions, response.temperature, response.max_output_tokens) == ("Be short.", 0, 12)


def test_a_tool_is_called_and_its_output_is_taken(client: openai.OpenAI) -> None:
    with client.responses.stream(
        model="demo", max_output_tokens=200, tools=[WEATHER], tool_choice="required", input=QUESTION
    ) as stream:
        called = stream.get_final_response()
    call = called.output[0]
    assert isinstance(call, ResponseFunctionToolCall) and call.name == "weather"
    assert json.loads(call.arguments)["city"] in ("Bern", "Rome")
    items: Any = [
        {"role": "user", "content": QUESTION},
        *[item.model_dump(exclude_none=True) for item in called.output],
        {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny"},
    ]
    answered = client.responses.create(model="demo", max_output_tokens=4, tools=[WEATHER], input=items)
    assert answered.usage is not None and answered.usage.output_tokens == 4


def test_a_schema_is_followed_and_parsed(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model="demo", input=QUESTION, text_format=Score, max_output_tokens=60)
    assert parsed.output_parsed is not None and parsed.output_parsed.unit in ("percent", "points")


def test_log_probabilities_are_included(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="demo", max_output_tokens=3, input=QUESTION, include=["message.output_text.logprobs"], top_logprobs=2
    )
    message = response.output[0]
    assert message.type == "message" and message.content[0].type == "output_text"
    logprobs = message.content[0].logprobs
    assert logprobs is not None and len(logprobs) == 3
    assert all(len(one.top_logprobs) == 2 for one in logprobs)
    assert "".join(one.token for one in logprobs) == response.output_text


#: A request as coding agents make it: nothing kept, everything streamed, reasoning to be sent back with the next one.
AGENTS: dict[str, Any] = {
    "model": "demo",
    "instructions": "You are a coding agent. You run in a terminal.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "The sandbox is on."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<cwd>/tmp</cwd>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAAAABo"},
        {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": '{"output":"a.py"}'},
        {"type": "function_call", "name": "shell", "arguments": '{"command":["cat","a.py"]}', "call_id": "call_2"},
        {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "print()"}]},
    ],
    "tools": [
        {
            "type": "function",
            "name": "shell",
            "description": "Runs a command.",
            "strict": False,
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "array", "items": {"type": "string"}}},
                "required": ["command"],
                "additionalProperties": False,
            },
        },
        {
            "type": "function",
            "name": "update_plan",
            "description": "Notes the steps.",
            "strict": False,
            "parameters": {"type": "object", "properties": {"plan": {"type": "array", "items": {"type": "object"}}}},
        },
        {"type": "local_shell"},
        {
            "type": "custom",
            "name": "apply_patch",
            "format": {"type": "grammar", "syntax": "lark", "definition": "s: /a/"},
        },
        {"type": "web_search", "external_web_access": False},
        {
            "type": "namespace",
            "name": "mcp__docs",
            "description": "Docs.",
            "tools": [{"type": "function", "name": "a"}],
        },
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "6a7b1c2e-0000-0000-0000-000000000000",
}


#: Tools that OpenAI runs, or trains its models for.
LEFT_OUT = {"tools.local_shell", "tools.custom", "tools.web_search", "tools.namespace"}


def test_a_coding_agents_request_is_answered(demo: RunningServer) -> None:
    answer = httpx.post(f"{demo.url}/v1/responses", json=AGENTS, headers={"accept": "text/event-stream"}, timeout=60)
    assert answer.status_code == 200, answer.text
    names = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
    assert names[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert names[-2:] == ["response.output_item.done", "response.completed"]
    assert set(answer.headers["x-ignored-parameters"].split(",")) >= {
        "prompt_cache_key",
        "reasoning.summary",
        *LEFT_OUT,
    }
    final = json.loads(answer.text.split("data: ")[-1])["response"]
    assert [tool["name"] for tool in final["tools"]] == ["shell", "update_plan"]
    assert httpx.get(f"{demo.url}/v1/responses/{final['id']}").status_code == 404


def test_an_agents_forced_call_is_of_a_function_of_its_own(client: openai.OpenAI) -> None:
    body: Any = {name: value for name, value in AGENTS.items() if name != "stream"} | {"tool_choice": "required"}
    call = client.responses.create(**body, max_output_tokens=200).output[-1]
    assert isinstance(call, ResponseFunctionToolCall) and call.name in ("shell", "update_plan")
    assert isinstance(json.loads(call.arguments), dict)


def test_a_bad_request_raises_the_clients_own_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="max_output_tokens: expected an integer >= 1") as refused:
        client.responses.create(model="demo", max_output_tokens=0, input=QUESTION)
    assert (refused.value.param, refused.value.type) == ("max_output_tokens", "invalid_request_error")
    with pytest.raises(openai.BadRequestError, match=r'tools\[0\].type: expected "function"') as refused:
        client.responses.create(model="demo", input=QUESTION, tools=[{"type": "web_search"}])
    assert (refused.value.param, refused.value.code) == ("tools[0].type", "unsupported_value")
    with pytest.raises(openai.BadRequestError, match=r"maximum context length is \d+ tokens") as refused:
        client.responses.create(model="demo", input="word " * 30_000)
    assert (refused.value.param, refused.value.code) == ("input", "context_length_exceeded")
