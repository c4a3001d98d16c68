"""Tools in a message, for models whose chat template has no place for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from djl_python.core.types import Chat, ToolUse
from djl_python.text.chat import ChatTemplates
from djl_python.text.tools.prompt import with_tools

F, G = ({"type": "function", "function": {"name": name, "description": "für"}} for name in ("f", "g"))
USER: dict[str, Any] = {"role": "user", "content": "hi"}
ASSISTANT: dict[str, Any] = {"role": "assistant", "content": "So:"}
ANY = ToolUse(tools=(F, G), choice="required", prompt="Call one:")
ONE = ToolUse(tools=(F, G), choice="named", name="g", prompt="Call it:")


def ending(prompt: str, *tools: dict[str, Any]) -> str:
    return f"\n---\n{prompt}\n{json.dumps(tools, ensure_ascii=False)}"


@pytest.mark.parametrize(
    ("messages", "use", "contents"),
    [
        ([USER], ANY, ["hi" + ending("Call one:", F, G)]),
        ([USER], ONE, ["hi" + ending("Call it:", G)]),
        ([USER, USER, ASSISTANT], ONE, ["hi", "hi" + ending("Call it:", G), "So:"]),
        (
            [{"role": "user", "content": [{"type": "image"}]}],
            ONE,
            [[{"type": "image"}, {"type": "text", "text": ending("Call it:", G)}]],
        ),
        ([{"role": "user", "content": None}], ONE, [ending("Call it:", G)]),
        ([ASSISTANT], ONE, ["So:"]),
    ],
)
def test_the_last_message_that_is_not_the_assistants_gets_the_tools(
    messages: list[Any], use: ToolUse, contents: list[Any]
) -> None:
    before = json.dumps(messages)
    told = [dict(message) for message in with_tools(messages, use)]
    assert told == [{**message, "content": content} for message, content in zip(messages, contents, strict=True)]
    assert json.dumps(messages) == before


def test_without_a_tool_prompt_the_usual_one_is_used() -> None:
    (message,) = with_tools([USER], ToolUse(tools=(F,), choice="required"))
    assert '"name"' in message["content"] and '"arguments"' in message["content"]


@pytest.mark.parametrize(
    ("template", "use", "expected"),
    [
        ("", ANY, "hi" + ending("Call one:", F, G)),
        ("", ToolUse(tools=(F,), choice="auto", prompt="x"), "hi"),
        ("", ToolUse(tools=(F,), choice="none", prompt="x"), "hi"),
        ("{{ tools | length }}", ANY, "2hi"),
    ],
)
def test_only_a_forced_call_of_a_template_without_a_place_for_tools_needs_a_prompt(
    template: str, use: ToolUse, expected: str
) -> None:
    templates = ChatTemplates({"default": template + "{{ messages[0].content }}"})
    assert templates.render(Chat(messages=(USER,), tool_use=use)) == expected
