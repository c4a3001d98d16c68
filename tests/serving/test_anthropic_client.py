"""Anthropic's own client against the demo model: whatever it sends is answered, and it reads every answer."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam

from djl_python.testing import RunningServer

QUESTION: list[MessageParam] = [{"role": "user", "content": "What is deep learning?"}]
WEATHER: ToolParam = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Bern", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def client(demo: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=demo.url, api_key="none", max_retries=0) as client:
        yield client


def test_a_stream_says_what_the_whole_message_says(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(model="demo", max_tokens=20, messages=QUESTION)
    with client.messages.stream(model="demo", max_tokens=20, messages=QUESTION) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert whole.content[0].type == final.content[0].type == "text"
    assert whole.content[0].text == final.content[0].text == text and len(text.split()) > 5
    assert whole.stop_reason == final.stop_reason == "max_tokens"
    counted = client.messages.count_tokens(model="demo", messages=QUESTION).input_tokens
    usage = final.usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert whole.usage.output_tokens == usage.output_tokens == 20


def test_a_tool_is_called_and_its_result_is_taken(client: anthropic.Anthropic) -> None:
    with client.messages.stream(
        model="demo", max_tokens=200, tools=[WEATHER], tool_choice={"type": "any"}, messages=QUESTION
    ) as stream:
        called = stream.get_final_message()
    (call,) = [block for block in called.content if block.type == "tool_use"]
    assert called.stop_reason == "tool_use" and call.name == "weather"
    assert isinstance(call.input, dict) and call.input["city"] in ("Bern", "Rome")
    answered = client.messages.create(
        model="demo",
        max_tokens=4,
        tools=[WEATHER],
        messages=[
            *QUESTION,
            {"role": "assistant", "content": called.content},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Sunny"}]},
        ],
    )
    assert answered.stop_reason == "max_tokens"


def test_a_stop_sequence_ends_the_message_and_is_named(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="demo", max_tokens=60, stop_sequences=["machine"], messages=QUESTION)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "machine")
    assert message.content[0].type == "text" and "machine" not in message.content[0].text


def test_a_bad_request_raises_the_clients_own_error(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens: expected an integer >= 1, got 0"):
        client.messages.create(model="demo", max_tokens=0, messages=QUESTION)
    long: list[MessageParam] = [{"role": "user", "content": "word " * 30_000}]
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > \d+ maximum"):
        client.messages.create(model="demo", max_tokens=5, messages=long)
