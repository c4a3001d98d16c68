"""Calls that a model makes of its own accord, through OpenAI's client. The model repeats what it is told to say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from djl_python.testing import FAKE_ENGINE, RunningServer, running_server, write_byte_tokenizer

#: Hermes' syntax, in a template that writes the last message and nothing else.
TEMPLATE = "{# tools are called with <tool_call> #}{% if tools %}{% endif %}{{ messages[-1].content }}"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NOW: Any = {"type": "function", "function": {"name": "now"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path = write_byte_tokenizer(tmp_path_factory.mktemp("models") / "echo")
    (path / "chat_template.jinja").write_text(TEMPLATE)
    (path / "serving.properties").write_text(f"option.model_id={path}\noption.rolling_batch={FAKE_ENGINE}\n")
    with running_server("-m", f"echo={path}") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def written(*calls: tuple[str, Any], said: str = "") -> str:
    return said + "".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"
        for name, arguments in calls
    )


def told(text: str, **options: Any) -> dict[str, Any]:
    """What makes the model say this once."""
    return {
        "model": "echo",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": len(text.encode()),
        "tools": [WEATHER, NOW],
        **options,
    }


CALLS: Any = (("weather", {"city": "Zürich \U0001f600"}), ("now", {}), ("weather", {"city": 'a "b"\n'}))


def test_parallel_calls_and_their_round_trip(client: openai.OpenAI) -> None:
    asked = told(written(*CALLS, said="Let me see."))
    (choice,) = client.chat.completions.create(**asked).choices
    message = choice.message
    assert message.content == "Let me see."
    calls: Any = message.tool_calls
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == list(CALLS)
    assert len({call.id for call in calls}) == 3
    # The engine ends by length; that it called tools would otherwise be the reason.
    assert choice.finish_reason == "length"
    results: list[Any] = [{"role": "tool", "tool_call_id": call.id, "content": f"{call.id}!"} for call in calls]
    again = client.chat.completions.create(
        **asked | {"messages": [*asked["messages"], message, *results], "max_tokens": len(calls[-1].id) + 1}
    )
    assert again.choices[0].message.content == f"{calls[-1].id}!"
    assert not again.choices[0].message.tool_calls


def test_a_single_call_is_returned_where_parallel_ones_are_not_wanted(client: openai.OpenAI) -> None:
    (choice,) = client.chat.completions.create(**told(written(*CALLS), parallel_tool_calls=False)).choices
    assert choice.message.tool_calls is not None
    assert [call.type == "function" and call.function.name for call in choice.message.tool_calls] == ["weather"]


def test_arguments_are_streamed_while_they_are_written(client: openai.OpenAI) -> None:
    pieces: dict[int, list[str]] = {}
    names: dict[int, list[str]] = {}
    content = ""
    for chunk in client.chat.completions.create(**told(written(*CALLS, said="So: ")), stream=True):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        for call in delta.tool_calls or []:
            assert call.function is not None
            assert (call.id is not None) == (call.type is not None) == (call.function.name is not None)
            names.setdefault(call.index, []).append(call.function.name or "")
            pieces.setdefault(call.index, []).append(call.function.arguments or "")
    assert content == "So:"
    assert [(names[index][0], json.loads("".join(pieces[index]))) for index in sorted(pieces)] == list(CALLS)
    assert all(not any(later) for _, *later in names.values())
    assert len(pieces[0]) > 10


def test_a_call_that_is_no_json_has_arguments_that_are(client: openai.OpenAI) -> None:
    text = '<tool_call>\n{"name": "weather", "arguments": {"city": "New\nYork", "path": "C:\\Users",}}}\n</tool_call>'
    (choice,) = client.chat.completions.create(**told(text)).choices
    assert not choice.message.content and choice.message.tool_calls
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"city": "New\nYork", "path": "C:\\Users"}


def test_wherever_a_limit_ends_a_call_its_syntax_is_no_content(client: openai.OpenAI) -> None:
    text = written(("now", {"x": "é"}), said="So: ")
    for length in range(len("So:"), len(text.encode())):
        asked = told(text, max_tokens=length)
        (choice,) = client.chat.completions.create(**asked).choices
        assert (choice.message.content or "").strip() == "So:" and choice.finish_reason == "length"
        whole = [call.function.arguments for call in choice.message.tool_calls or [] if call.type == "function"]
        deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**asked, stream=True)]
        assert "".join(delta.content or "" for delta in deltas) == choice.message.content
        pieces = [call.function for delta in deltas for call in delta.tool_calls or [] if call.function]
        assert "".join(piece.arguments or "" for piece in pieces) == "".join(whole)


def test_the_streaming_helper_reads_the_calls(client: openai.OpenAI) -> None:
    text = written(CALLS[0])
    deltas: list[str] = []
    with client.chat.completions.stream(**told(text, max_tokens=4000, stop="</tool_call>")) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.delta":
                deltas.append(event.arguments_delta)
            if event.type == "tool_calls.function.arguments.done":
                assert (event.name, event.parsed_arguments) == CALLS[0]
        final = stream.get_final_completion()
    assert len(deltas) > 10
    (choice,) = final.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls or []
    assert call.function.parsed_arguments == CALLS[0][1]


@pytest.mark.parametrize(
    "text", ["<tool_call>not json</tool_call>", '<tool_call>{"no": "name"}', "a < b <tool> c", "{}"]
)
@pytest.mark.parametrize("stream", [False, True])
def test_text_that_only_looks_like_a_call_is_content(client: openai.OpenAI, text: str, stream: bool) -> None:
    if stream:
        chunks = [chunk.choices[0].delta for chunk in client.chat.completions.create(**told(text), stream=True)]
        assert not any(delta.tool_calls for delta in chunks)
        assert "".join(delta.content or "" for delta in chunks) == text
    else:
        message = client.chat.completions.create(**told(text)).choices[0].message
        assert (message.content, message.tool_calls) == (text, None)


def test_calls_in_lmis_schema(server: RunningServer, client: openai.OpenAI) -> None:
    answer = client.post(f"{server.url}/invocations", body=told(written(CALLS[1])), cast_to=object)
    (choice,) = answer["choices"]  # type: ignore[index]
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}


def test_functions_are_called_as_before_there_were_tools(client: openai.OpenAI) -> None:
    functions = [WEATHER["function"], NOW["function"]]
    asked = told(written(*CALLS[:2], said="Let me see."), tools=openai.NOT_GIVEN, functions=functions)
    stopped = asked | {"stop": "</tool_call><"}  # which ends the text behind the first call
    (choice,) = client.chat.completions.create(**asked).choices
    assert (choice.message.tool_calls, choice.message.content) == (None, "Let me see.")
    assert choice.message.function_call is not None  # the first call alone
    assert choice.message.function_call.name == "weather"
    assert json.loads(choice.message.function_call.arguments) == CALLS[0][1]
    assert choice.finish_reason == "length"
    (called,) = client.chat.completions.create(**stopped).choices
    assert (called.finish_reason, called.message.function_call) == ("function_call", choice.message.function_call)
    pieces = [chunk.choices[0] for chunk in client.chat.completions.create(**stopped, stream=True)]
    deltas = [piece.delta for piece in pieces]
    first, *others = [delta.function_call for delta in deltas if delta.function_call is not None]
    assert first.name == "weather" and not any(one.name for one in others)
    assert "".join(one.arguments or "" for one in (first, *others)) == choice.message.function_call.arguments
    assert not any(delta.tool_calls for delta in deltas)
    assert "".join(delta.content or "" for delta in deltas) == "Let me see."
    assert pieces[-1].finish_reason == "function_call"


def test_a_function_that_is_named_is_called_and_its_answer_read(client: openai.OpenAI) -> None:
    asked: Any = {"model": "echo", "messages": [{"role": "user", "content": "{}"}], "max_tokens": 2}
    functions: Any = [NOW["function"]]
    (choice,) = client.chat.completions.create(**asked, functions=functions, function_call="none").choices
    assert (choice.message.content, choice.message.function_call) == ("{}", None)
    results: Any = [choice.message, {"role": "function", "name": "now", "content": "noon"}]
    asked |= {"messages": [*asked["messages"], *results], "max_tokens": 4}
    assert client.chat.completions.create(**asked).choices[0].message.content == "noon"
