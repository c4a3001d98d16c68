"""Answers in the user's own shape."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from djl_python.core.errors import GenerationError
from djl_python.core.types import (
    Branching,
    Delta,
    Finish,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    Token,
    TopToken,
)
from djl_python.dialects.lmi.format import LmiFormatter
from djl_python.dialects.shared.custom import CustomFormatter, ResponseFormatter
from djl_python.output_formatter import (
    TextGenerationOutput,
    adapt_output_formatter,
    adapt_response_formatter,
    output_formatter,
)

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


def make(
    function: Callable[..., Any],
    framing: str,
    parameters: dict[str, Any] | None = None,
    prompts: tuple[str, ...] = ("Hi",),
    n: int = 1,
) -> CustomFormatter:
    sampling, branching = SamplingParams(max_new_tokens=5), Branching(n=n)
    requests = [GenerateRequest(prompt=prompt, sampling=sampling, branching=branching) for prompt in prompts]
    return CustomFormatter(
        adapt_output_formatter(function), LmiFormatter(framing), requests, parameters or {}, tgi_compat=False
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


def test_an_output_formatter_sees_tokens_and_sequences() -> None:
    seen: list[TextGenerationOutput] = []

    @output_formatter
    def look(request_output: TextGenerationOutput) -> str:
        seen.append(request_output)
        return ""

    formatter = make(look, "json", {"mine": 5}, prompts=("Hi", "Ho"))
    formatter.push(Delta(choice=1, tokens=TOKENS, finish=FINISH))
    output = seen[-1]
    assert output.get_tokens_as_dict() == [
        {"id": 1, "text": "He", "log_prob": -0.5},
        {"id": 2, "text": "llo", "log_prob": -0.25},
        {"id": 3, "text": "", "log_prob": -0.1, "special_token": True},
    ]
    assert output.get_top_tokens_as_dict() == [[{"id": 7, "text": "Yo", "log_prob": -1.0}]]
    assert output.get_prompt_tokens_as_dict() == [{"id": 9, "text": "Hi", "log_prob": None}]
    assert (output.request_id, output.prompt_text, output.input.parameters) == (1, "Ho", {"mine": 5})


def test_headers_are_the_dialects_except_for_the_type() -> None:
    inner = LmiFormatter("sse", headers={"x-ignored-parameters": "mood"})
    formatter = CustomFormatter(adapt_output_formatter(custom), inner, (), {}, tgi_compat=False)
    assert formatter.headers == {"x-ignored-parameters": "mood", "content-type": "application/jsonlines"}


def test_errors_are_the_dialects() -> None:
    assert json.loads(make(custom, "jsonlines").error(GenerationError("no")))["error"] == "no"


@output_formatter
def documented(request_output: TextGenerationOutput) -> str:
    """As LMI's documentation has it."""
    best = request_output.sequences[request_output.best_sequence_index]
    token, _, last = best.get_next_token()
    result = {"token_id": token.id}  # type: ignore[union-attr]
    if last:
        others = [request_output.sequences[index] for index in request_output.other_sequences_indices]
        result |= {
            "prompt": request_output.prompt_text,
            "text": request_output.text,
            "why": best.finish_reason,
            "others": [[token.id for token in other.tokens] for other in others],
            "finished": request_output.finished,
        }
    return json.dumps(result) + "\n"


def lines(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines()]


def test_of_several_sequences_the_first_answers_and_waits_for_the_others() -> None:
    formatter = make(documented, "jsonlines", n=2)
    assert lines(formatter.push(Delta(choice=0, tokens=TOKENS[:1]))) == [{"token_id": 1}]
    assert formatter.push(Delta(choice=1, tokens=TOKENS[:2])) == b""
    assert lines(formatter.push(Delta(choice=0, tokens=TOKENS[1:], finish=FINISH))) == [{"token_id": 2}]
    (last,) = lines(formatter.push(Delta(choice=1, tokens=TOKENS[2:], finish=FINISH)))
    assert (last["token_id"], last["text"], last["others"], last["finished"]) == (3, "Hello", [[1, 2, 3]], True)
    assert last["why"] == "eos_token"


def test_the_best_may_be_the_last_to_end() -> None:
    formatter = make(documented, "json", n=2)
    formatter.push(Delta(choice=1, tokens=TOKENS, finish=FINISH))
    formatter.push(Delta(choice=0, tokens=TOKENS, finish=FINISH))
    assert [line["token_id"] for line in lines(formatter.end())] == [1, 2, 3]


def test_each_prompt_has_an_output_of_its_own() -> None:
    formatter = make(documented, "json", prompts=("Hi", "Ho"))
    formatter.push(Delta(choice=1, tokens=TOKENS[:1]))
    formatter.push(Delta(choice=0, tokens=TOKENS, finish=FINISH))
    formatter.push(Delta(choice=1, tokens=TOKENS[1:], finish=FINISH))
    ends = [line for line in lines(formatter.end()) if "text" in line]
    assert [(end["prompt"], end["text"], end["others"]) for end in ends] == [("Hi", "Hello", []), ("Ho", "Hello", [])]


def reshaped(function: Callable[..., Any], framing: str, **options: Any) -> ResponseFormatter:
    return ResponseFormatter(adapt_response_formatter(function), LmiFormatter(framing, **options))


def marked(response: dict[str, Any]) -> dict[str, Any]:
    return {**response, "mine": len(response)}


def test_a_function_of_dicts_has_the_whole_response() -> None:
    formatter = reshaped(marked, "json", details=True)
    assert formatter.shows_logprobs
    assert formatter.push(Delta(tokens=TOKENS, finish=FINISH)) == b""
    made = json.loads(formatter.end())
    assert (made["generated_text"], made["details"]["generated_tokens"], made["mine"]) == ("Hello", 3, 2)
    assert formatter.headers["content-type"] == "application/json"


def test_a_function_of_dicts_has_each_chunk_of_a_stream() -> None:
    formatter = reshaped(marked, "jsonlines")
    first = formatter.push(Delta(tokens=TOKENS[:1]))
    rest = formatter.push(Delta(tokens=TOKENS[1:], finish=FINISH)) + formatter.end()
    assert [line["mine"] for line in lines(first + rest)] == [1, 1, 2]
    events = reshaped(marked, "sse")
    data = events.push(Delta(tokens=TOKENS[:2]))
    assert events.keep_alive
    assert [json.loads(event[6:])["mine"] for event in data.split(b"\n\n")[:-1]] == [1, 1]


def test_a_function_of_dicts_may_return_text() -> None:
    formatter = reshaped(lambda response: response["generated_text"].upper(), "json")
    formatter.push(Delta(tokens=TOKENS, finish=FINISH))
    assert formatter.end() == b"HELLO"
    assert json.loads(formatter.error(GenerationError("no")))["error"] == "no"


class Lists(LmiFormatter):
    """Answers as TGI's clients want them, in a list, and streams that end with a word."""

    def end(self) -> bytes:
        return b"data: [DONE]\n\n: comment\n" if self.stream else b'[{"a": 1}, {"b": 2}]'


def test_lists_and_what_is_no_json() -> None:
    assert json.loads(ResponseFormatter(marked, Lists("json")).end()) == [{"a": 1, "mine": 1}, {"b": 2, "mine": 1}]
    assert ResponseFormatter(marked, Lists("sse")).end() == b"data: [DONE]\n\n: comment\n"
