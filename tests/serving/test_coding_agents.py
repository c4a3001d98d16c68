"""What coding agents send to /v1/messages: every part of such a body is answered, and what has no effect is named."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from djl_python.testing import RunningServer
from tests.contract.event_order import MESSAGES

CACHED = {"type": "ephemeral"}
HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14",
    "x-api-key": "none",
}
READ: dict[str, Any] = {
    "name": "Read",
    "description": "Reads a file. " + "The path is absolute. " * 40,
    "input_schema": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"file_path": {"type": "string"}, "limit": {"type": "number"}},
        "required": ["file_path"],
        "additionalProperties": False,
    },
    "cache_control": CACHED,
}
#: A turn in which a tool has failed.
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "What is in a.py?", "cache_control": CACHED}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I read it.", "signature": ""},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "/a.py"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "toolu_1",
                "content": [{"type": "text", "text": "no such file"}],
                "is_error": True,
                "cache_control": CACHED,
            },
            {"type": "text", "text": "Go on."},
        ],
    },
]
BODY: dict[str, Any] = {
    "model": "demo",
    "max_tokens": 8,
    "stream": True,
    "system": [
        {"type": "text", "text": "You are an agent.", "cache_control": CACHED},
        {"type": "text", "text": "You help."},
    ],
    "tools": [READ],
    "metadata": {"user_id": "user_1_session_2"},
    "messages": TURNS,
}


def post(server: RunningServer, body: dict[str, Any], path: str = "/v1/messages?beta=true") -> httpx.Response:
    return httpx.post(server.url + path, json=body, headers=HEADERS, timeout=60)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}, "temperature": 1},
        {"stop_sequences": ["\n\nHuman:"], "temperature": 0},
    ],
    ids=["plain", "one call at a time", "thinking", "stop"],
)
def test_a_turn_with_a_failed_tool_is_answered(demo: RunningServer, more: dict[str, Any]) -> None:
    answer = post(demo, BODY | more)
    assert answer.status_code == 200, answer.text
    events = MESSAGES.check(answer.text)
    assert MESSAGES.reasons(events)[0] in ("end_turn", "max_tokens", "tool_use")


def test_a_turn_is_counted(demo: RunningServer) -> None:
    counted = {name: value for name, value in BODY.items() if name not in ("max_tokens", "stream", "metadata")}
    tokens = post(demo, counted, "/v1/messages/count_tokens?beta=true").json()["input_tokens"]
    usage = post(demo, BODY | {"stream": False}).json()["usage"]
    assert tokens == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_fields_without_effect_are_named(demo: RunningServer) -> None:
    answer = post(demo, BODY | {"context_management": {"edits": []}, "stream": False})
    assert answer.status_code == 200, answer.text
    assert "context_management" in ",".join(answer.headers["x-ignored-parameters"].split(","))


def test_an_image_for_a_model_without_eyes_is_refused_by_its_path(demo: RunningServer) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    image = {"role": "user", "content": [{"type": "image", "source": source}]}
    answer = post(demo, BODY | {"messages": [image]})
    error = json.loads(answer.text)["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert "messages[0].content" in error["message"]
