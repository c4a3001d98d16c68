"""LMI's shapes, token by token."""

from __future__ import annotations

import json
from typing import Any

import pytest

from djl_python.request_io import TextGenerationOutput, TextInput, Token
from djl_python.usercode import token_answers


def lines(name: str, tgi_compat: bool = False, reason: str = "eos_token", **parameters: Any) -> list[str]:
    """What a formatter makes of two tokens."""
    given = TextInput(5, parameters=parameters, input_text="Hi", input_ids=[1, 2], tgi_compat=tgi_compat)
    output = TextGenerationOutput(5, given, prompt_tokens_details=[Token(9, "Hi")])
    made = []
    for token, last in ((Token(1, "a", -0.5), False), (Token(2, "b", -1.0), True)):
        output.set_next_token(token, is_last_token=last, finish_reason=reason if last else None)
        output.finished = last
        made.append(getattr(token_answers, name)(output))
    return made


def test_json() -> None:
    assert lines("json_answer") == ["", '{"generated_text":"ab"}']
    details = json.loads(lines("json_answer", details=True, decoder_input_details=True)[1])["details"]
    assert details == {
        "finish_reason": "eos_token",
        "generated_tokens": 2,
        "inputs": "Hi",
        "prefill": [{"id": 9, "text": "Hi", "log_prob": None}],
        "tokens": [{"id": 1, "text": "a", "log_prob": -0.5}, {"id": 2, "text": "b", "log_prob": -1.0}],
    }
    assert json.loads(lines("json_answer", reason="error")[1])["details"] == {"finish_reason": "error"}
    (tgi,) = json.loads(lines("json_answer", tgi_compat=True)[1])
    assert tgi["details"]["tokens"][0] == {"id": 1, "text": "a", "logprob": -0.5, "special": False}


def test_lines_and_events() -> None:
    first, last = map(json.loads, lines("jsonlines_answer", return_full_text=True))
    assert first == {"token": {"id": 1, "text": "a", "log_prob": -0.5}}
    assert last["generated_text"] == "Hiab"
    assert "details" not in last
    event = lines("sse_answer", details=True)[1]
    assert event.startswith('data: {"token"')
    assert event.endswith("\n\n")
    assert json.loads(event[6:])["details"]["generated_tokens"] == 2


def test_chats() -> None:
    completion = json.loads(lines("json_chat_answer", logprobs=1)[1])
    (choice,) = completion["choices"]
    assert choice["message"] == {"role": "assistant", "content": "ab"}
    assert choice["finish_reason"] == "stop"
    assert [one["logprob"] for one in choice["logprobs"]["content"]] == [-0.5, -1.0]
    assert completion["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    first, last = map(json.loads, lines("jsonlines_chat_answer", reason="length"))
    assert first["choices"][0]["delta"] == {"content": "a", "role": "assistant"}
    assert first["choices"][0]["finish_reason"] is None
    assert last["choices"][0] == {"index": 0, "delta": {"content": "b"}, "logprobs": None, "finish_reason": "length"}


def test_without_a_new_token() -> None:
    output = TextGenerationOutput(5, TextInput(5))
    with pytest.raises(ValueError, match="request 5 has no token"):
        token_answers.jsonlines_answer(output)
