"""Streams as the APIs document them, read: what is a token, what is a complete answer, what is an error."""

from __future__ import annotations

import json

import pytest

from djl_python.bench.dialects import DIALECTS, lines_of
from djl_python.bench.http import Read


def sse(*events: object) -> list[Read]:
    """A stream, an event each second."""
    return [
        (float(second), b"data: " + (event.encode() if isinstance(event, str) else json.dumps(event).encode()))
        for second, event in enumerate(events, 1)
    ]


def text(part: str, reason: str | None = None) -> dict[str, object]:
    return {"choices": [{"text": part, "finish_reason": reason}]}


def token(part: str, **last: object) -> dict[str, object]:
    return {"token": {"id": 1, "text": part}, **last}


END = {"generated_text": "ab", "details": {"finish_reason": "length", "generated_tokens": 2}}
USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}


def test_openai_counts_by_usage_and_stamps_text() -> None:
    lines = [(0.5, b": comment"), *sse(text("a"), text("b"), text("", "length"), USAGE, "[DONE]")]
    generation = DIALECTS["openai"].read(lines)
    assert generation.token_times_s == [1.0, 2.0]
    assert (generation.tokens, generation.prompt_tokens, generation.text) == (2, 7, "ab")


def test_openai_without_usage_counts_pieces() -> None:
    generation = DIALECTS["openai"].read(sse(text("a"), text("b", "stop")))
    assert (generation.tokens, generation.prompt_tokens) == (2, None)


def test_chats_begin_with_a_role() -> None:
    deltas = [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}, {}]
    chunks = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    generation = DIALECTS["openai-chat"].read(sse(*chunks, USAGE, "[DONE]"))
    assert (generation.token_times_s, generation.text) == ([2.0, 3.0], "ab")


def test_tgi_and_lmi_have_an_object_a_token() -> None:
    events = sse(token("a"), token("b", **END))
    assert DIALECTS["tgi"].read(events).tokens == 2
    lines = [(time_s, data.removeprefix(b"data: ")) for time_s, data in events]
    generation = DIALECTS["lmi"].read(lines)
    assert (generation.token_times_s, generation.tokens, generation.text) == ([1.0, 2.0], 2, "ab")


def test_responses_count_by_usage_and_stamp_text() -> None:
    made = {"model": "m", "usage": {"input_tokens": 7, "output_tokens": 3}}
    events = [{"type": "response.created"}, *({"type": f"response.{kind}.delta", "delta": "a"} for kind in KINDS)]
    generation = DIALECTS["responses"].read(sse(*events, {"type": "response.incomplete", "response": made}))
    assert (generation.token_times_s, generation.text, generation.model) == ([2.0, 3.0], "aa", "m")
    assert (generation.tokens, generation.prompt_tokens) == (3, 7)


KINDS = ("reasoning_text", "output_text")


def test_messages_count_all_parts_of_a_prompt() -> None:
    start = {"model": "m", "usage": {"input_tokens": 4, "cache_read_input_tokens": 3, "output_tokens": 1}}
    generation = DIALECTS["anthropic"].read(
        sse(
            {"type": "message_start", "message": start},
            {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "a"}},
            {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "b"}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
            {"type": "message_stop"},
        )
    )
    assert (generation.token_times_s, generation.text, generation.model) == ([2.0, 3.0], "ab", "m")
    assert (generation.tokens, generation.prompt_tokens) == (2, 7)


def test_ollama_counts_in_the_last_line() -> None:
    lines = [piece("a"), piece("b"), {**piece(""), "done": True, "eval_count": 2, "prompt_eval_count": 7}]
    generation = DIALECTS["ollama"].read([(float(at), json.dumps(line).encode()) for at, line in enumerate(lines, 1)])
    assert (generation.token_times_s, generation.text, generation.model) == ([1.0, 2.0], "ab", "m")
    assert (generation.tokens, generation.prompt_tokens) == (2, 7)


def piece(text: str) -> dict[str, object]:
    return {"model": "m:latest", "message": {"content": text}, "done": False}


@pytest.mark.parametrize(
    ("dialect", "lines", "message"),
    [
        ("openai", sse(text("a")), "has no end"),
        ("openai", sse(text("a"), {"error": {"message": "full"}}), "full"),
        ("openai", sse("{"), "not JSON"),
        ("tgi", sse(token("a")), "no last line"),
        ("tgi", sse({"error": "Request failed", "error_type": "generation"}), "Request failed"),
        ("lmi", [(1.0, b'{"token": {}, "details": {"finish_reason": "error"}}')], "ends with an error"),
        ("lmi", [], "no last line, only 0 tokens"),
        ("responses", sse({"type": "response.output_text.delta", "delta": "a"}), "no end, only 1 pieces"),
        ("responses", sse({"type": "response.failed", "response": {}}), "ends with an error"),
        ("anthropic", sse({"type": "message_start", "message": {}}), "no end, only 0 pieces"),
        ("anthropic", sse({"type": "error", "error": {"message": "full"}}), "full"),
        ("ollama", [(1.0, b'{"message": {"content": "a"}, "done": false}')], "no last line, only 1 pieces"),
        ("ollama", [(1.0, b'{"error": "full"}')], "full"),
    ],
)
def test_an_incomplete_answer_is_an_error(dialect: str, lines: list[Read], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DIALECTS[dialect].read(lines)


def test_lines_are_stamped_when_complete() -> None:
    assert lines_of([(1.0, b"a"), (2.0, b"b\nc\n\nd"), (3.0, b"e")]) == [(2.0, b"ab"), (2.0, b"c"), (3.0, b"de")]
