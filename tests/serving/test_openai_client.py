"""OpenAI's own client against the demo model: whatever it sends is answered, and it reads every answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionToolParam

from djl_python.testing import RunningServer

QUESTION: Any = [{"role": "user", "content": "What is deep learning?"}]
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"unit": {"enum": ["celsius", "fahrenheit"]}, "days": {"type": "integer", "maximum": 7}},
            "required": ["unit", "days"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def client(demo: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def expected(client: openai.OpenAI) -> str:
    """What the model says to QUESTION."""
    text = client.chat.completions.create(model="demo", messages=QUESTION, temperature=0).choices[0].message.content
    assert text
    return text


# ------------------------------------------------------------------------------------------------ chats


def test_a_chat(client: openai.OpenAI, expected: str) -> None:
    answer = client.chat.completions.create(model="whatever", messages=QUESTION, temperature=0)
    assert answer.model == "demo"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == expected
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_the_checkpoint_decides_whether_to_sample(client: openai.OpenAI, expected: str) -> None:
    """The demo's generation_config says that it does not."""
    assert client.chat.completions.create(model="demo", messages=QUESTION).choices[0].message.content == expected


def test_a_streamed_chat(client: openai.OpenAI, expected: str) -> None:
    chunks = list(
        client.chat.completions.create(
            model="demo", messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    *pieces, last = chunks
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == expected
    assert [piece.choices[0].delta.role for piece in pieces] == ["assistant"] + [None] * (len(pieces) - 1)
    assert [piece.choices[0].finish_reason for piece in pieces][-2:] == [None, "stop"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert last.choices == []
    assert last.usage is not None and last.usage.completion_tokens >= len(pieces) - 1


def test_the_streaming_helper(client: openai.OpenAI, expected: str) -> None:
    with client.chat.completions.stream(model="demo", messages=QUESTION, temperature=0) as stream:
        done = [event for event in stream if event.type == "content.done"]
        final = stream.get_final_completion()
    assert [event.content for event in done] == [expected]
    assert final.choices[0].message.content == expected


def test_content_in_parts(client: openai.OpenAI, expected: str) -> None:
    parts: Any = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "deep learning?"}],
        }
    ]
    answer = client.chat.completions.create(model="demo", messages=parts, temperature=0)
    assert answer.choices[0].message.content == expected


def test_several_answers(client: openai.OpenAI) -> None:
    def ask() -> list[str | None]:
        answer = client.chat.completions.create(
            model="demo", messages=QUESTION, n=3, temperature=2.0, seed=7, max_tokens=12
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [choice.message.content for choice in answer.choices]

    first = ask()
    assert len(set(first)) > 1
    assert ask() == first


def test_several_streamed_answers(client: openai.OpenAI) -> None:
    texts = {0: "", 1: ""}
    stream = client.chat.completions.create(
        model="demo", messages=QUESTION, n=2, temperature=2.0, seed=7, max_tokens=12, stream=True
    )
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert all(texts.values())


@pytest.mark.parametrize("many", [False, True])
def test_stop(client: openai.OpenAI, expected: str, many: bool) -> None:
    word = expected.split()[3]
    answer = client.chat.completions.create(
        model="demo", messages=QUESTION, temperature=0, stop=["\u2603", word] if many else word
    )
    assert answer.choices[0].message.content == expected[: expected.index(word)]
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_length(client: openai.OpenAI, name: str) -> None:
    limit: dict[str, Any] = {name: 3}
    answer = client.chat.completions.create(model="demo", messages=QUESTION, **limit)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.completion_tokens == 3


def test_logprobs(client: openai.OpenAI, expected: str) -> None:
    answer = client.chat.completions.create(
        model="demo", messages=QUESTION, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None and answer.usage is not None
    assert len(logprobs.content) == answer.usage.completion_tokens
    assert b"".join(bytes(token.bytes or []) for token in logprobs.content).decode() == expected + "<|im_end|>"
    for token in logprobs.content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == pytest.approx(token.top_logprobs[0].logprob)  # greedy: the likeliest


def test_logprobs_of_parts_of_characters(client: openai.OpenAI) -> None:
    """A token has the bytes and the name that it has among its alternatives, and they join to the text and its end."""
    answer = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Show me some emoji."}],
        temperature=0,
        logprobs=True,
        top_logprobs=20,
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "stop" and choice.message.content and "\U0001f680" in choice.message.content
    assert choice.logprobs is not None and choice.logprobs.content is not None
    *tokens, end = choice.logprobs.content
    assert bytes(end.bytes or []).decode() == end.token == end.top_logprobs[0].token != ""
    for token in choice.logprobs.content:
        likeliest = token.top_logprobs[0]
        assert (token.token, token.bytes, token.logprob) == (likeliest.token, likeliest.bytes, likeliest.logprob)
    assert b"".join(bytes(token.bytes or []) for token in tokens).decode() == choice.message.content
    assert b"".join(bytes(token.top_logprobs[0].bytes or []) for token in tokens).decode() == choice.message.content
    assert all(len(token.top_logprobs) == 20 for token in tokens)


def test_logit_bias(client: openai.OpenAI, expected: str) -> None:
    answer = client.completions.create(model="demo", prompt="Hi", temperature=0, max_tokens=4, logprobs=0)
    banned = client.completions.create(
        model="demo", prompt="Hi", temperature=0, max_tokens=4, logit_bias={str(i): -100 for i in range(4, 200)}
    )
    assert answer.choices[0].text != banned.choices[0].text


# ------------------------------------------------------------------------------------------------ formats and tools


def test_json_schema(client: openai.OpenAI) -> None:
    schema: Any = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema["additionalProperties"] = False
    answer = client.chat.completions.create(
        model="demo",
        messages=QUESTION,
        max_tokens=200,
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}},
    )
    assert isinstance(json.loads(answer.choices[0].message.content or "")["ok"], bool)


def test_json_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="demo", messages=QUESTION, max_tokens=400, seed=3, response_format={"type": "json_object"}
    )
    content = answer.choices[0].message.content or ""
    assert content.lstrip().startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(content), dict)


def check_weather(arguments: str) -> None:
    given = json.loads(arguments)
    assert set(given) == {"unit", "days"}
    assert given["unit"] in ("celsius", "fahrenheit") and given["days"] <= 7


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}], ids=["required", "named"]
)
def test_a_forced_call_and_its_round_trip(client: openai.OpenAI, choice: Any) -> None:
    answer = client.chat.completions.create(
        model="demo",
        messages=QUESTION,
        tools=[WEATHER],
        tool_choice=choice,
        parallel_tool_calls=False,
        max_tokens=200,
    )
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert message.content is None
    (call,) = message.tool_calls or []
    assert call.type == "function" and call.id
    assert call.function.name == "get_weather"
    check_weather(call.function.arguments)
    again = client.chat.completions.create(
        model="demo",
        messages=[*QUESTION, message, {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}],  # type: ignore[list-item]
        tools=[WEATHER],
        max_tokens=5,
    )
    assert again.choices[0].message.content


def test_a_streamed_call(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="demo",
        messages=QUESTION,
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=200,
        stream=True,
    )
    names, arguments, reasons = "", "", []
    for chunk in stream:
        assert not chunk.choices[0].delta.content
        reasons.append(chunk.choices[0].finish_reason)
        for call in chunk.choices[0].delta.tool_calls or []:
            assert call.index == 0 and call.function is not None
            names += call.function.name or ""
            arguments += call.function.arguments or ""
    assert names == "get_weather"
    check_weather(arguments)
    assert reasons[-1] == "tool_calls"


def test_no_tools_wanted(client: openai.OpenAI, expected: str) -> None:
    answer = client.chat.completions.create(
        model="demo", messages=QUESTION, temperature=0, tools=[WEATHER], tool_choice="none"
    )
    assert answer.choices[0].message.content == expected


# ------------------------------------------------------------------------------------------------ completions


def test_a_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="demo", prompt="What is", max_tokens=4, temperature=0)
    assert answer.object == "text_completion"
    assert answer.choices[0].finish_reason == "length"
    streamed = client.completions.create(model="demo", prompt="What is", max_tokens=4, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == answer.choices[0].text


def test_several_prompts(client: openai.OpenAI) -> None:
    prompts = ["What is", "Who are you?"]
    alone = [
        client.completions.create(model="demo", prompt=prompt, max_tokens=4, temperature=0).choices[0].text
        for prompt in prompts
    ]
    together = client.completions.create(model="demo", prompt=prompts, max_tokens=4, temperature=0)
    assert [choice.text for choice in together.choices] == alone
    assert together.usage is not None and together.usage.completion_tokens == 8


def test_echo_and_logprobs(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="demo", prompt="What is", max_tokens=0, echo=True, logprobs=1)
    choice = answer.choices[0]
    assert choice.text == "What is"
    logprobs = choice.logprobs
    assert logprobs is not None and logprobs.tokens and logprobs.token_logprobs and logprobs.text_offset
    assert "".join(logprobs.tokens) == "What is"
    assert logprobs.token_logprobs[0] is None
    assert all(logprob < 0 for logprob in logprobs.token_logprobs[1:])
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert choice.text[offset:].startswith(token)


@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_echoes_with_logprobs(client: openai.OpenAI, n: int) -> None:
    asked: dict[str, Any] = {
        "prompt": "What is",
        "max_tokens": 3,
        "echo": True,
        "logprobs": 1,
        "temperature": 0,
        "n": n,
    }
    expected = client.completions.create(model="demo", **asked).choices
    pieces = [chunk.choices[0] for chunk in client.completions.create(model="demo", stream=True, **asked)]
    for choice in expected:
        own = [piece for piece in pieces if piece.index == choice.index]
        assert "".join(piece.text for piece in own) == choice.text
        assert choice.logprobs is not None and choice.logprobs.text_offset
        offsets = [at for piece in own for at in (piece.logprobs and piece.logprobs.text_offset) or ()]
        assert offsets == choice.logprobs.text_offset


def test_token_ids(client: openai.OpenAI) -> None:
    text = client.completions.create(model="demo", prompt=[300, 301], max_tokens=2, echo=True, temperature=0)
    both = client.completions.create(model="demo", prompt=[[300, 301], [302]], max_tokens=2, echo=True, temperature=0)
    assert [choice.index for choice in both.choices] == [0, 1]
    assert both.choices[0].text == text.choices[0].text
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="demo", prompt=[10_000_000])
    assert caught.value.param == "prompt"


# ------------------------------------------------------------------------------------------------ LMI's chat schema


def test_the_same_chat_in_lmis_schema(demo: RunningServer, expected: str) -> None:
    body = {"messages": QUESTION, "temperature": 0}
    whole = httpx.post(f"{demo.url}/invocations", json=body).json()
    assert set(whole) == {"id", "object", "created", "choices", "usage"}
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": expected}
    assert whole["choices"][0]["finish_reason"] == "eos_token"
    streamed = httpx.post(f"{demo.url}/predictions/demo", json=body | {"stream": True})
    assert streamed.headers["content-type"] == "application/jsonlines"
    choices = [json.loads(line)["choices"][0] for line in streamed.text.splitlines()]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == expected
    assert choices[-1]["finish_reason"] == "eos_token"


# ------------------------------------------------------------------------------------------------ models and errors


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").owned_by == "djl-serving"
    for name in ("other", "org/other"):
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve(name)
        assert caught.value.code == "model_not_found"


def test_parameters_without_effect_are_reported_as_ignored(client: openai.OpenAI) -> None:
    answer = client.chat.completions.with_raw_response.create(
        model="demo", messages=QUESTION, max_tokens=1, user="me", store=False, extra_body={"zzz": 1, "top_k": 5}
    )
    assert answer.headers["x-ignored-parameters"] == "top_k,zzz"  # the demo model does not draw by default
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"temperature": 9}, "temperature", None),
        ({"messages": []}, "messages", None),
        ({"messages": [{"role": "user", "content": "a " * 5000}]}, "messages", "context_length_exceeded"),
        ({"max_tokens": 100_000}, "messages", "context_length_exceeded"),
        ({"response_format": {"type": "xml"}}, "response_format.type", None),
        ({"tool_choice": "required"}, "tool_choice", None),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
            "messages[0].content[0]",
            None,
        ),
    ],
)
def test_bad_requests(client: openai.OpenAI, changes: dict[str, Any], param: str, code: str | None) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**{"model": "demo", "messages": QUESTION, "stream": stream} | changes)
        assert (caught.value.param, caught.value.code, caught.value.type) == (param, code, "invalid_request_error")
