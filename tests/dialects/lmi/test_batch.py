"""LMI's dynamic-batch schema, which option.rolling_batch=disable chooses."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from djl_python.config import ModelConfig, Options
from djl_python.core import errors
from djl_python.core.types import Delta, Finish, FinishReason, Token
from djl_python.dialects.lmi.dialect import LmiDialect
from djl_python.dialects.shared.base import Parsed
from djl_python.inputs import Input
from djl_python.ipc.protocol import Call
from tests.dialects.test_refusals import LMI as LMI_BODY

LMI = LmiDialect()


def model(**options: Any) -> ModelConfig:
    return ModelConfig(name="m", option=Options(**{"rolling_batch": "disable", **options}))


def inputs(body: Any) -> Input:
    data = msgspec.json.encode(body)
    return Input.from_call(Call(1, "lmi", "predict", "POST", "/", (), {"content-type": "application/json"}, data))


def parse(body: Any, **options: Any) -> Parsed:
    return LMI.parse(inputs(body), model(**options))


def delta(choice: int, *texts: str, ends: str | None = None) -> Delta:
    tokens = tuple(Token(7, text, None) for text in texts)
    finish = None
    if ends is not None:
        finish = Finish(reason=FinishReason.EOS, text=ends, prompt=f"p{choice}", prompt_tokens=1, generated_tokens=2)
    return Delta(choice=choice, tokens=tokens, text="".join(texts), finish=finish)


@pytest.mark.parametrize(("given", "prompts"), [("a", ["a"]), (["a"], ["a"]), (["a", "b"], ["a", "b"])])
def test_a_list_with_a_text_for_each_prompt(given: Any, prompts: list[str]) -> None:
    parsed = parse({"inputs": given, "parameters": {"max_new_tokens": 3}})
    assert [request.prompt for request in parsed.requests] == prompts
    assert {request.sampling.max_new_tokens for request in parsed.requests} == {3}
    assert parsed.formatter.headers == {"content-type": "application/json"}
    for choice in reversed(range(len(prompts))):
        assert parsed.formatter.push(delta(choice, "x")) == b""
        assert parsed.formatter.push(delta(choice, "y", ends=f"text {choice}")) == b""
    assert json.loads(parsed.formatter.end()) == [{"generated_text": f"text {n}"} for n in range(len(prompts))]


def test_full_texts() -> None:
    formatter = parse({"inputs": ["a"], "parameters": {"return_full_text": True}}).formatter
    formatter.push(delta(0, ends=" text"))
    assert json.loads(formatter.end()) == [{"generated_text": "p0 text"}]


@pytest.mark.parametrize(
    ("body", "options", "content_type"),
    [
        ({"stream": True}, {}, "application/jsonlines"),
        ({}, {"enable_streaming": True}, "application/jsonlines"),
        ({"stream": False}, {"enable_streaming": True}, "application/json"),
        ({}, {"output_formatter": "sse"}, "text/event-stream"),
    ],
)
def test_an_output_formatter_sets_the_content_type(
    body: dict[str, Any], options: dict[str, Any], content_type: str
) -> None:
    formatter = parse({"inputs": "a", **body}, **options).formatter
    assert formatter.headers["content-type"].startswith(content_type)
    assert formatter.stream is (content_type != "application/json")


def test_a_line_has_the_next_token_of_each_prompt() -> None:
    formatter = parse({"inputs": ["a", "b"], "stream": True}).formatter
    steps = [
        formatter.push(delta(0, "This", " is")),
        formatter.push(delta(1, "No")),
        formatter.push(delta(1, ends="No")),
        formatter.push(delta(0, " it", ends="This is it")),
        formatter.end(),
    ]
    assert [[json.loads(line)["outputs"] for line in step.splitlines()] for step in steps] == [
        [],
        [["This", "No"]],
        [[" is", ""]],
        [[" it", ""]],
        [],
    ]


def test_each_prompt_has_all_other_parameters() -> None:
    parameters = LMI_BODY["parameters"] | {"zzz": 1, "do_sample": True}
    parameters |= dict.fromkeys(("logprobs", "prompt_logprobs", "top_n_tokens", "details", "decoder_input_details"))
    body = {"inputs": ["a", "b"], "parameters": parameters, "yyy": 1}
    (alone,) = LMI.parse(inputs(body | {"inputs": "a"}), model(rolling_batch=None)).requests
    requests = parse(body).requests
    assert [request.prompt for request in requests] == ["a", "b"]
    for request in requests:
        assert (request.sampling, request.text, request.truncate) == (alone.sampling, alone.text, alone.truncate)
        assert (request.bad_sequences, request.text.stop_sequences) == (("b",), ("a",))
        assert request.ignored == alone.ignored == ("early_stopping", "length_penalty", "yyy", "zzz")


def test_parameters_without_a_place_in_a_batch_are_reported_as_ignored() -> None:
    parameters = {"details": True, "n": 2, "best_of": 2, "top_n_tokens": 3, "decoder_input_details": True}
    parsed = parse({"inputs": "a", "parameters": parameters})
    assert parsed.formatter.headers["x-ignored-parameters"] == "decoder_input_details,details,n,top_n_tokens"
    (request,) = parsed.requests
    assert (request.branching.n, request.branching.best_of) == (1, 2)
    assert request.sampling.prompt_logprobs is None and request.sampling.top_logprobs == 0
    one = parse({"inputs": "a", "parameters": {"n": 1, "details": False}})
    assert "x-ignored-parameters" not in one.formatter.headers


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"inputs": []}, "inputs: expected a string or an array of strings, got an empty one"),
        ({"inputs": ["a", 1]}, "inputs[1]: expected a non-empty string, got 1"),
        ({"inputs": ["a", ""]}, "inputs[1]: expected a non-empty string, got an empty one"),
        ({"inputs": ["a"] * 1025}, "inputs: expected at most 1024 sequences together, got 1025 prompts"),
        (
            {"inputs": ["a"] * 9, "parameters": {"best_of": 128}},
            "inputs: expected at most 1024 sequences together, got 9 prompts with 128 each",
        ),
        (
            {"inputs": ["a"] * 2, "parameters": {"num_beams": 65}},
            "inputs: expected at most 128 sequences together, got 2 prompts with 65 each",
        ),
        (
            {"inputs": ["a"], "parameters": {"top_k": "x"}},
            'parameters.top_k: expected an integer >= -1 (-1 and 0: off), got "x"',
        ),
    ],
)
def test_errors_are_the_documented_ones(body: Any, message: str) -> None:
    with pytest.raises(errors.ServingError) as caught:
        parse(body)
    answer = LMI.error(caught.value, model(), inputs=inputs(body))
    assert answer.status == 424
    error = json.loads(answer.body)
    assert error.pop("error").endswith(message)
    assert error == {"code": 424, "message": "invoke handler failure"}


def test_an_error_ends_a_stream() -> None:
    error = errors.GenerationError("out of memory")
    expected = {"code": 424, "message": "invoke handler failure", "error": "out of memory"}
    assert json.loads(parse({"inputs": "a", "stream": True}).formatter.error(error)) == expected
    headers = {"content-type": "application/jsonlines"}
    assert json.loads(LMI.stream_error(error, headers, model())) == expected


def test_the_front_ends_refusals_stay_what_they_are() -> None:
    answer = LMI.error(errors.OverloadedError("full"), model())
    assert answer.status == 503 and json.loads(answer.body)["type"] != "invoke handler failure"


def test_a_chat_is_a_chat_with_dynamic_batches_too() -> None:
    assert len(parse({"messages": [{"role": "user", "content": "a"}]}).requests) == 1


def test_a_prompt_that_fails_has_its_error_in_its_place() -> None:
    formatter = parse({"inputs": ["a", "b"]}).formatter
    assert formatter.isolates
    formatter.fail_item(0, errors.GenerationError("lost"))
    formatter.push(delta(1, ends="text"))
    failure = {"code": 424, "message": "invoke handler failure", "error": "lost"}
    assert json.loads(formatter.end()) == [failure, {"generated_text": "text"}]
    assert not parse({"inputs": ["a", "b"], "stream": True}).formatter.isolates


def test_tgis_shapes_are_those_of_continuous_batching() -> None:
    formatter = parse({"inputs": "a", "parameters": {"details": False}}, tgi_compat=True).formatter
    formatter.push(delta(0, ends="text"))
    assert json.loads(formatter.end()) == [{"generated_text": "text"}]
    assert parse({"inputs": "a"}, tgi_compat=True).formatter.shows_logprobs
