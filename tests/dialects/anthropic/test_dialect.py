"""Anthropic's messages: what a request becomes, and the events and errors that answer it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from djl_python.config import Checkpoint
from djl_python.core.errors import (
    ContextLengthError,
    OverloadedError,
    ParameterError,
    PayloadError,
    PredictTimeoutError,
    RateLimitError,
    ServingError,
    UnauthorizedError,
    WorkerDiedError,
)
from djl_python.core.types import Chat, Delta, FinishReason, Grammar, ImageSource, ThinkingBudget
from djl_python.dialects.anthropic.dialect import AnthropicDialect
from tests.dialects.exchange import called, ending, inputs, model, said, whole

API = AnthropicDialect()
HI = [{"role": "user", "content": "Hi."}]
WEATHER = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
TAKES_IMAGES = Checkpoint(takes_images=True)


def parsed(checkpoint: Checkpoint | None = None, **body: Any) -> Any:
    asked = {"model": "served", "max_tokens": 9, "messages": HI} | body
    return API.parse(inputs("messages", asked, "anthropic"), model(checkpoint))


def chat(messages: list[Any], checkpoint: Checkpoint | None = None, **body: Any) -> Chat:
    (request,) = parsed(checkpoint, messages=messages, **body).requests
    assert isinstance(request.prompt, Chat)
    return request.prompt


def events(formatter: Any, *deltas: Delta) -> list[tuple[str, dict[str, Any]]]:
    """(name, data) of each event."""
    data = b"".join(map(formatter.push, deltas)) + formatter.end()
    blocks = [event.split(b"\n") for event in data.removesuffix(b"\n\n").split(b"\n\n")]
    named = [
        (name.removeprefix(b"event: ").decode(), json.loads(data.removeprefix(b"data: "))) for name, data in blocks
    ]
    assert all(name == data["type"] for name, data in named)
    return named


# ------------------------------------------------------------------------------------------------ requests


def test_a_request_asks_for_what_its_fields_say() -> None:
    (request,) = parsed(
        temperature=0.5, top_k=3, top_p=0.25, stop_sequences=["z"], cache_control={"type": "x"}
    ).requests
    sampling = request.sampling
    assert (sampling.max_new_tokens, sampling.do_sample, sampling.temperature) == (9, True, 0.5)
    assert (sampling.top_k, sampling.top_p, request.text.stop_sequences) == (3, 0.25, ("z",))
    assert (request.add_special_tokens, request.splits_reasoning, request.must_fit) == (False, True, False)
    assert request.ignored == ()
    assert parsed(zzz=1).requests[0].ignored == ("zzz",)


def test_blocks_become_the_messages_of_a_chat_template() -> None:
    made = chat(
        [
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Bern"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "Sun"}]},
                    {"type": "text", "text": "So?"},
                ],
            },
            {"role": "system", "content": "Be honest."},
            {"role": "user", "content": "Well?"},
        ],
        system=[
            {"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "B"},
        ],
        tools=[WEATHER],
    )
    arguments = {"name": "weather", "arguments": '{"city":"Bern"}'}
    assert made.messages == (
        {"role": "system", "content": "Be short.\nB"},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "t1", "type": "function", "function": arguments}],
        },
        {"role": "tool", "content": "Sun", "tool_call_id": "t1"},
        {"role": "user", "content": "So?"},
        {"role": "system", "content": "Be honest."},
        {"role": "user", "content": "Well?"},
    )
    assert (made.continue_final, made.add_generation_prompt) == (False, True)
    assert made.tool_use is not None
    assert made.tool_use.tools[0]["function"]["parameters"] == WEATHER["input_schema"]


def test_images_keep_their_place_and_their_path() -> None:
    url = {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [PNG]}
    made = chat([{"role": "user", "content": [result, {"type": "text", "text": "See"}, url]}], TAKES_IMAGES)
    assert made.messages == (
        {"role": "tool", "content": [{"type": "image"}], "tool_call_id": "t"},
        {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "image"}]},
    )
    assert made.images == (
        ImageSource("data:image/png;base64,aGk=", "messages[0].content[0].content[0].source.data"),
        ImageSource("https://a/b.png", "messages[0].content[2].source.url"),
    )


def test_consecutive_messages_of_one_role_are_one_turn() -> None:
    assert chat([*HI, *HI]).messages == ({"role": "user", "content": "Hi.\nHi."},)


def test_an_answer_goes_on_with_the_assistants_last_message() -> None:
    made = chat([*HI, {"role": "assistant", "content": "Well,"}])
    assert (made.continue_final, made.add_generation_prompt) == (True, False)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, ("auto", "", True)),
        ({"type": "any", "disable_parallel_tool_use": True}, ("required", "", False)),
        ({"type": "tool", "name": "weather"}, ("named", "weather", True)),
        ({"type": "none"}, ("none", "", True)),
    ],
)
def test_a_tool_is_chosen_as_the_request_says(choice: Any, expected: Any) -> None:
    use = chat(HI, tools=[WEATHER], tool_choice=choice).tool_use
    assert use is not None and (use.choice, use.name, use.parallel) == expected


def test_thinking_has_a_budget_and_effort_is_the_templates() -> None:
    (request,) = parsed(thinking={"type": "enabled", "budget_tokens": 5}, output_config={"effort": "low"}).requests
    assert request.thinking_budget == ThinkingBudget(5, "thinking")
    assert request.prompt.variables["enable_thinking"] is True
    assert request.prompt.variables["reasoning_effort"] == "low"
    assert request.prompt.variable_fields["reasoning_effort"] == "output_config.effort"


@pytest.mark.parametrize("field", ["output_format", "output_config.format"])
def test_a_schema_constrains_the_text(field: str) -> None:
    format_ = {"type": "json_schema", "schema": {"type": "object", "properties": {}, "additionalProperties": False}}
    body = {"output_config": {"format": format_}} if "." in field else {field: format_}
    grammar = parsed(**body).requests[0].sampling.grammar
    assert isinstance(grammar, Grammar) and (grammar.kind, grammar.field) == ("json_schema", f"{field}.schema")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "system", "content": [PNG]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [PNG]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "t", "name": "a", "input": {}}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]},
            "messages[0].content[0].type",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "a", "input_schema": {"type": "array"}}]}, "tools[0].input_schema.type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "b"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"mcp_servers": [{"url": "https://a"}]}, "mcp_servers"),
        ({"thinking": {"type": "disabled", "budget_tokens": 5}}, "thinking.budget_tokens"),
    ],
)
def test_a_wrong_field_is_refused_by_its_path(body: dict[str, Any], field: str) -> None:
    with pytest.raises((ParameterError, PayloadError)) as refused:
        parsed(**body)
    error = refused.value
    assert isinstance(error, ParameterError | PayloadError)
    assert error.field == field and field in error.message


# ------------------------------------------------------------------------------------------------ answers

ANSWER = (
    Delta(tokens=said("").tokens, reasoning="Hm"),
    Delta(tokens=said("").tokens, reasoning="."),
    said("I "),
    said("look."),
    called(0, "t1", "weather", '{"city":'),
    called(0, arguments='"Bern"}'),
    called(1, "t2", "time", ""),
    Delta(finish=ending(FinishReason.EOS, prompt_tokens=7, cached_tokens=4)),
)


def test_a_message_has_a_block_for_each_part() -> None:
    assert whole(parsed().formatter, *ANSWER) | {"id": "m"} == {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "served",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": ""},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Bern"}},
            {"type": "tool_use", "id": "t2", "name": "time", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 3,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4,
            "output_tokens": 3,
        },
    }


def test_events_come_in_anthropics_order() -> None:
    formatter = parsed(stream=True).formatter
    formatter.prepared([[1, 2, 3]], splits_reasoning=True)
    assert formatter.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert formatter.keep_alive == b'event: ping\ndata: {"type":"ping"}\n\n'
    made = events(formatter, *ANSWER)
    names = [name.removeprefix("content_block_") for name, _ in made]
    blocks = ["start", "delta", "delta", "stop"]
    assert names == ["message_start", *blocks * 3, "start", "stop", "message_delta", "message_stop"]
    assert [data["index"] for name, data in made if "block" in name] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 2
    assert made[0][1]["message"]["usage"]["input_tokens"] == 3
    deltas = [data["delta"] for name, data in made if name == "content_block_delta"]
    assert deltas == [
        {"type": "thinking_delta", "thinking": "Hm"},
        {"type": "thinking_delta", "thinking": "."},
        {"type": "text_delta", "text": "I "},
        {"type": "text_delta", "text": "look."},
        {"type": "input_json_delta", "partial_json": '{"city":'},
        {"type": "input_json_delta", "partial_json": '"Bern"}'},
    ]
    assert made[-2][1]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert made[-2][1]["usage"]["output_tokens"] == 3


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        (ending(FinishReason.EOS), ("end_turn", None)),
        (ending(FinishReason.LENGTH), ("max_tokens", None)),
        (ending(FinishReason.STOP, stop="z"), ("stop_sequence", "z")),
        (ending(FinishReason.STOP), ("end_turn", None)),
    ],
)
def test_the_stop_reason_says_what_ended_the_message(finish: Any, expected: Any) -> None:
    message = whole(parsed().formatter, said("a", end=finish))
    assert (message["stop_reason"], message["stop_sequence"]) == expected


def test_a_call_that_the_limit_cuts_off_is_left_out() -> None:
    end = ending(FinishReason.LENGTH)
    message = whole(parsed().formatter, said("a"), called(0, "t", "weather", '{"city":', end))
    assert [block["type"] for block in message["content"]] == ["text"]
    assert message["stop_reason"] == "max_tokens"


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (ParameterError("a: b", "a"), 400, "invalid_request_error"),
        (UnauthorizedError("a"), 401, "authentication_error"),
        (OverloadedError("a"), 529, "overloaded_error"),
        (RateLimitError("a", "tokens"), 429, "rate_limit_error"),
        (PredictTimeoutError("a"), 504, "timeout_error"),
        (WorkerDiedError("a"), 500, "api_error"),
    ],
)
def test_an_error_has_anthropics_status_and_type(error: ServingError, status: int, kind: str) -> None:
    answer = API.error(error)
    body = json.loads(answer.body)
    assert (answer.status, body["type"], body["error"]["type"]) == (status, "error", kind)
    assert ("retry-after" in answer.headers) == isinstance(error, OverloadedError)
    stream = parsed(stream=True).formatter.error(error)
    assert stream == b"event: error\ndata: " + answer.body + b"\n\n"


def test_a_prompt_that_is_too_long_is_refused_in_anthropics_words() -> None:
    body = json.loads(API.error(ContextLengthError(90, None, 64)).body)
    assert body["error"]["message"] == "prompt is too long: 90 tokens > 64 maximum"
