"""Messages: what becomes of each role and form of content on the way to a template, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from djl_python.config import Checkpoint
from djl_python.core import errors
from djl_python.core.types import Chat, ImageSource
from djl_python.dialects.shared.chat.request import read_chat
from tests.dialects.exchange import model

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}


def read(given: list[Any], *, takes_images: bool) -> Chat:
    served = model(Checkpoint(takes_images=takes_images))
    prompt = read_chat({"messages": given}, served, must_fit=True).request.prompt
    assert isinstance(prompt, Chat)
    return prompt


def messages(*given: Any, takes_images: bool = False) -> tuple[dict[str, Any], ...]:
    return read(list(given), takes_images=takes_images).messages


def ignored(detail: str | None) -> tuple[str, ...]:
    part = {"type": "image_url", "image_url": {"url": "data:,", **({"detail": detail} if detail else {})}}
    body = {"messages": [{"role": "user", "content": [part]}]}
    return read_chat(body, model(Checkpoint(takes_images=True)), must_fit=True).request.ignored


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"role": "system", "content": "S"}, {"role": "system", "content": "S"}),
        ({"role": "developer", "content": "S"}, {"role": "developer", "content": "S"}),
        ({"role": "document 1", "content": "D"}, {"role": "document 1", "content": "D"}),
        ({"role": "*", "content": [{"type": "text", "text": "D"}]}, {"role": "*", "content": "D"}),
        ({"role": "user", "content": "U", "name": "Ann"}, {"role": "user", "content": "U", "name": "Ann"}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "a b"},
        ),
        ({"role": "assistant", "content": "A"}, {"role": "assistant", "content": "A"}),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            {"role": "assistant", "content": "No."},
        ),
        ({"role": "assistant", "content": None, "refusal": "No."}, {"role": "assistant", "content": "No."}),
        (
            {"role": "assistant", "content": "A", "reasoning_content": "R"},
            {"role": "assistant", "content": "A", "reasoning_content": "R"},
        ),
        (
            {"role": "assistant", "content": "A", "reasoning": "R", "reasoning_content": None},
            {"role": "assistant", "content": "A", "reasoning_content": "R"},
        ),
        (
            {"role": "assistant", "content": "A", "reasoning": "no", "reasoning_content": ""},
            {"role": "assistant", "content": "A", "reasoning_content": ""},
        ),
        (
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "T"}]},
            {"role": "tool", "content": "T", "tool_call_id": "c"},
        ),
        (
            {"role": "tool", "name": "f", "content": "T"},  # as in TGI's document
            {"role": "tool", "content": "T", "name": "f"},
        ),
    ],
)
def test_messages_become_those_of_templates(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert messages(given) == (expected,)


def nested(name: str, levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {name: schema}
    return schema


@pytest.mark.parametrize("given", [{"arguments": None}, {"arguments": {}}, {}])
def test_a_call_that_was_made_without_arguments(given: dict[str, Any]) -> None:
    (message,) = messages({"role": "assistant", "tool_calls": [{"function": {"name": "f"} | given}]})
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


@pytest.mark.parametrize("arguments", ['{"a":1}', {"a": 1}])
def test_earlier_calls_are_read(arguments: Any) -> None:
    """OpenAI's clients send the arguments as text, TGI's the object: templates always get text."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    (message,) = messages({"role": "assistant", "tool_calls": [call]})
    assert message == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
    }


def test_a_function_call_is_a_tool_call_that_the_function_answers() -> None:
    called = {"name": "f", "arguments": '{"a":1}'}
    _, made, answer = messages(
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": None, "function_call": called},
        {"role": "function", "name": "f", "content": "T"},
    )
    (call,) = made["tool_calls"]
    assert call == {"id": call["id"], "type": "function", "function": called}
    assert len(call["id"]) == 9
    assert answer == {"role": "function", "name": "f", "content": "T", "tool_call_id": call["id"]}


def test_images_are_found_in_order() -> None:
    shown = {"role": "user", "content": [{"type": "text", "text": "What?"}, IMAGE]}
    (message,) = messages(shown, takes_images=True)
    assert message == {"role": "user", "content": [{"type": "text", "text": "What?"}, {"type": "image"}]}
    prompt = read([{"role": "system", "content": "S"}, shown, shown], takes_images=True)
    assert prompt.images == tuple(
        ImageSource("data:image/png;base64,AAAA", f"messages[{i}].content[1].image_url.url") for i in (1, 2)
    )
    with pytest.raises(errors.PayloadError) as caught:
        messages({"role": "system", "content": "S"}, shown)
    assert ignored("low") == ("detail",)
    assert ignored("auto") == ignored(None) == ()
    assert caught.value.message == "messages[1].content[1]: this model does not take images, expected text"
    assert caught.value.field == "messages[1].content[1]"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            [],
            'messages: expected a non-empty array of at most 10000 items, each item an object whose role is "system", ',
        ),
        ("Hi.", "messages: expected a non-empty array"),
        (["Hi."], "messages[0]: expected an object whose role is"),
        (
            [{"content": "x"}],
            'messages[0].role: required, expected "system", "developer", "user", "assistant", "tool", "function" or '
            "another",
        ),
        ([{"role": "", "content": "x"}], 'messages[0].role: expected "system", "developer", "user", "assistant"'),
        ([{"role": 5, "content": "x"}], 'messages[0].role: expected "system", "developer", "user", "assistant"'),
        ([{"role": "r" * 257, "content": "x"}], "messages[0].role: expected at most 256 characters, got 257"),
        ([{"role": "document"}], "messages[0].content: required, expected a string or an array"),
        ([{"role": "function", "content": "x"}], "messages[0].name: required, expected a string"),
        (
            [{"role": "document", "content": [IMAGE]}],
            'messages[0].content[0].type: expected "text", got "image_url"',
        ),
        ([{"role": "user"}], "messages[0].content: required, expected a string or an array"),
        ([{"role": "user", "content": None}], "messages[0].content: expected a string or an array"),
        ([{"role": "user", "content": 5}], "messages[0].content: expected a string or an array"),
        (
            [{"role": "user", "content": [{"type": "input_audio"}]}],
            'messages[0].content[0].type: expected "text" or "image_url", got "input_audio"',
        ),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "messages[0].content[0].text: required, expected a string",
        ),
        (
            [{"role": "system", "content": [IMAGE]}],
            'messages[0].content[0].type: expected "text", got "image_url"',
        ),
        ([{"role": "tool", "tool_call_id": "c"}], "messages[0].content: required, expected a string or an array"),
        ([{"role": "assistant", "content": None}], "messages[0].content: required where there are no tool_calls"),
        ([{"role": "assistant", "tool_calls": []}], "messages[0].content: required where there are no tool_calls"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": nested("a", 100_000)}}]}],
            "messages[0].tool_calls[0].function.arguments: nested too deeply",
        ),
        ([nested("a", 100_000)], "messages[0].role: required"),
        (nested("a", 100_000), "messages: expected a non-empty array"),
    ],
)
def test_malformed_messages_are_refused(given: Any, message: str) -> None:
    with pytest.raises(errors.PayloadError) as caught:
        read_chat({"messages": given}, model(), must_fit=True)
    assert caught.value.message.startswith(message)
    assert caught.value.field == message.partition(":")[0]


def test_a_chat_without_messages_is_refused() -> None:
    with pytest.raises(errors.PayloadError, match=r"^messages: required, expected a non-empty array"):
        read_chat({}, model(), must_fit=True)
