"""Answers in the user's own shape."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from djl_python.dialects.custom import CustomFormatter
from djl_python.dialects.lmi_format import LmiFormatter
from djl_python.errors import GenerationError
from djl_python.output_formatter import TextGenerationOutput, adapt_output_formatter, output_formatter
from djl_python.types import Delta, Finish, FinishReason, GenerateRequest, SamplingParams, Token, TopToken

TOKENS = (
    Token(1, "He", -0.5, top=(TopToken(7, "Yo", -1.0),)),
    Token(2, "llo", -0.25),
    Token(3, "", -0.1, special=True),
)
FINISH = Finish(
    reason=FinishReason.EOS,
    text="Hello",
    prompt="Hi",
    prompt_tokens=1,
    generated_tokens=3,
    prefill=(Token(9, "Hi", None),),
)


def make(function: Callable[..., Any], framing: str, parameters: dict[str, Any] | None = None) -> CustomFormatter:
    request = GenerateRequest(prompt="Hi", sampling=SamplingParams(max_new_tokens=5))
    return CustomFormatter(
        adapt_output_formatter(function), LmiFormatter(framing), request, parameters or {}, tgi_compat=False
    )


@output_formatter
def custom(request_output: TextGenerationOutput) -> str:
    sequence = request_output.sequences[request_output.best_sequence_index]
    token, first, last = sequence.get_next_token()
    assert token is not None
    line = {"t": token.text, "first": first, "last": last}
    if last:
        assert request_output.finished
        line |= {
            "reason": sequence.finish_reason,
            "prompt": request_output.prompt_text,
            "prefill": len(request_output.prompt_tokens_details),
            "top": sequence.top_tokens[0][0].text,
            "mine": request_output.input.parameters["mine"],
        }
    return json.dumps(line) + "\n"


def test_streams_one_piece_for_each_token() -> None:
    formatter = make(custom, "jsonlines", {"mine": 5})
    assert formatter.stream
    assert formatter.headers["content-type"] == "application/jsonlines"
    first = formatter.push(Delta(tokens=TOKENS[:1]))
    assert json.loads(first) == {"t": "He", "first": True, "last": False}
    rest = [json.loads(line) for line in formatter.push(Delta(tokens=TOKENS[1:], finish=FINISH)).splitlines()]
    assert [line["t"] for line in rest] == ["llo", ""]
    assert rest[-1]["last"]
    assert rest[-1] | {"reason": "eos_token", "prompt": "Hi", "prefill": 1, "top": "Yo", "mine": 5} == rest[-1]


def test_without_streaming_the_pieces_come_together() -> None:
    @output_formatter
    def legacy(
        token: object, first_token: bool, last_token: bool, details: dict[str, Any], generated_text: str, id: int
    ) -> str:
        return json.dumps({"text": generated_text, "why": details["finish_reason"]}) if last_token else ""

    formatter = make(legacy, "json", {"details": True})
    assert formatter.headers["content-type"] == "application/json"
    assert formatter.push(Delta(tokens=TOKENS[:2])) == b""
    assert formatter.push(Delta(tokens=TOKENS[2:], finish=FINISH)) == b""
    assert json.loads(formatter.end()) == {"text": "Hello", "why": "eos_token"}


def test_errors_are_the_dialects() -> None:
    assert json.loads(make(custom, "jsonlines").error(GenerationError("no")))["error"] == "no"
