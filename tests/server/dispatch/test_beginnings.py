"""The trail of a request, from its headers and its body."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from djl_python.dialects import all_dialects
from djl_python.dialects.shared.base import Kind
from djl_python.server.dispatch.beginnings import SESSION, trail_in
from djl_python.server.models.routing.trail import Trail
from tests.server.models.routing.test_trail import shared


def trail(body: Any, headers: dict[str, str] | None = None, context: bytes = b"") -> Trail:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return trail_in(headers or {}, data, context, prompts=True)


def message(text: str, role: str = "user") -> dict[str, str]:
    return {"role": role, "content": text}


CHAT = [message("You are a poet. " * 30, "system"), message("Hello")]
LATER = [*CHAT, message("Hi", "assistant"), message("Rhyme")]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"messages": CHAT, "max_tokens": 3}, {"max_tokens": 9, "messages": LATER, "stream": True}),
        ({"model": "m", "messages": CHAT}, {"messages": LATER, "model": "m"}),
        ({"system": "s" * 600, "messages": CHAT[1:]}, {"messages": LATER[1:], "system": "s" * 600}),
        ({"instructions": "s" * 600, "input": CHAT[1:]}, {"input": LATER[1:], "instructions": "s" * 600}),
        ({"inputs": CHAT, "parameters": {}}, {"inputs": LATER, "parameters": {"seed": 1}}),
    ],
)
def test_a_chats_turns_have_all_earlier_messages_in_common(first: Any, second: Any) -> None:
    before = trail(first)
    assert shared(before, trail(second)) == before.sizes[-1] > 500


@pytest.mark.parametrize("field", ["prompt", "inputs", "input", "text_input"])
def test_a_text_has_its_beginning_in_common_with_longer_ones(field: str) -> None:
    text = "".join(map(str, range(1000)))
    one, other = trail({field: text + "a", "x": 1}), trail({"x": 2, field: text + "bc"})
    assert len(text) - 256 < shared(one, other) <= len(text) + 1


@pytest.mark.parametrize("field", ["model", "adapters", "adapter"])
def test_other_models_and_adapters_have_nothing_in_common(field: str) -> None:
    assert shared(trail({field: "a", "messages": CHAT}), trail({field: "b", "messages": CHAT})) == 0


def test_other_tools_make_another_prompt() -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in "ab"]
    one, other = trail({"messages": CHAT, "tools": tools[:1]}), trail({"tools": tools[1:], "messages": CHAT})
    assert shared(one, other) == 0
    assert shared(one, trail({"tools": tools[:1], "messages": LATER})) == one.sizes[-1]


@pytest.mark.parametrize(
    "body",
    [b"plain text", b'["a"]', b"\xff\xfe", b'{"messages":', b'{"own field":"x"}', b"[" * 10_000, b'{"messages":7}'],
)
def test_any_other_body_is_compared_as_it_is(body: bytes) -> None:
    assert trail(body).sizes
    assert shared(trail(body), trail(body)) == trail(body).sizes[-1]


def test_an_empty_body_and_a_very_large_one_have_no_beginnings() -> None:
    assert trail(b"") == trail({"prompt": "x" * (2 << 20)}) == Trail()


def test_token_ids_are_compared_as_one_text() -> None:
    ids = list(range(2000))
    assert len(trail({"prompt": ids}).hashes) < 60
    assert shared(trail({"prompt": ids}), trail({"prompt": [*ids, 7]})) > 8000


def test_a_session_is_its_header_whatever_the_body_is() -> None:
    headers = {SESSION: "an id"}
    for beginning in (trail({"inputs": "x"}, headers), trail_in(headers, b"{}", b"", prompts=False)):
        assert (beginning.follows, beginning.name) == ("an id", "an id")
    assert trail_in({}, b'{"inputs":"x"}', b"", prompts=False) == Trail()


def test_a_response_follows_the_one_before_it_and_is_called_by_its_own_name() -> None:
    context = b'{"id":"resp_2","kept":true,"previous":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}'
    beginning = trail({"input": "c", "previous_response_id": "resp_1"}, context=context)
    assert (beginning.follows, beginning.name, len(beginning.hashes)) == ("resp_1", "resp_2", 3)


def test_prompts_of_every_dialect_are_in_fields_that_are_known_here() -> None:
    """Otherwise the whole body is compared, and a chat's turns differ where its other fields do."""
    missed = [
        (dialect.name, route.operation)
        for dialect in all_dialects().values()
        for route in dialect.routes
        if route.kind is Kind.GENERATE and isinstance(route.example, dict)
        if route.operation not in {operation for _, operation in dialect.task_parsers}
        if trail({"other": 1, **route.example}).sizes[-1] == len(json.dumps({"other": 1, **route.example}))
    ]
    assert missed == [("ollama", "ollama_generate")]  # whose example has no prompt


def test_names_that_are_too_long_to_be_remembered_count_as_none() -> None:
    long = "x" * 1_000_000
    assert trail_in({SESSION: long}, b"{}", b"", prompts=False) == Trail()
    beginning = trail({"input": "c", "previous_response_id": long}, {SESSION: long}, b'{"id":"resp_2"}')
    assert (beginning.follows, beginning.name, len(beginning.hashes)) == ("", "resp_2", 1)
    beginning = trail({"input": "c", "previous_response_id": "resp_1"}, {SESSION: long})
    assert (beginning.follows, beginning.name) == ("resp_1", "")
    assert trail({"input": "c", "previous_response_id": "x" * 256}).follows == "x" * 256


@pytest.mark.parametrize("rest", [b",{}" * 340_000, b",1" * 510_000])
def test_a_list_of_hundreds_of_thousands_does_not_hold_the_event_loop_up(rest: bytes) -> None:
    """Counted in objects, which do not depend on the machine: there were as many as the list has elements."""
    body = b'{"messages":[{"role":"user"}' + rest + b"]}"
    tracemalloc.start()
    try:
        beginning = trail(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(beginning.hashes), beginning.sizes[0]) == (512, len(b'{"role":"user"}'))
    assert peak < 3 * len(body)
