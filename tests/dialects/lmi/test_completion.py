"""Completions on LMI's routes: a body with `prompt` -> OpenAI's answer, in LMI's framing and with its errors."""

from __future__ import annotations

from typing import Any

import pytest

from djl_python.core import errors
from djl_python.core.types import FinishReason
from djl_python.dialects.lmi.dialect import LmiDialect
from djl_python.dialects.shared.base import Parsed
from tests.dialects.exchange import answer, ending, inputs, lines, model, said, whole

LMI = LmiDialect()
DYNAMIC_STREAM = {"rolling_batch": "disable", "enable_streaming": True}


def parse(body: dict[str, Any], **options: Any) -> Parsed:
    return LMI.parse(inputs("predict", body, "lmi"), model(**options))


@pytest.mark.parametrize("options", [{}, {"async_mode": True}, {"rolling_batch": "disable"}, {"tgi_compat": True}])
def test_a_completion(options: dict[str, Any]) -> None:
    parsed = parse({"model": "lmi", "prompt": "Hi.", "max_tokens": 7, "temperature": 0}, **options)
    (request,) = parsed.requests
    assert (request.prompt, request.sampling.max_new_tokens, request.must_fit) == ("Hi.", 7, False)
    completion = whole(parsed.formatter, said("Good"), said(" day", end=ending(FinishReason.LENGTH)))
    assert completion["object"] == "text_completion"
    assert completion["choices"] == [{"index": 0, "text": "Good day", "logprobs": None, "finish_reason": "length"}]
    assert completion["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}


@pytest.mark.parametrize("stream", [True, "True"])
def test_a_stream_is_jsonlines(stream: Any) -> None:
    formatter = parse({"prompt": "Hi.", "stream": stream}).formatter
    assert formatter.headers["content-type"] == "application/jsonlines"
    chunks = lines(answer(formatter, said("Good"), said("", end=ending())))
    assert [one["choices"][0]["text"] for one in chunks] == ["Good", ""]
    assert [one["choices"][0]["finish_reason"] for one in chunks] == [None, "stop"]


@pytest.mark.parametrize("options", [{"output_formatter": "sse"}, {"output_formatter": "jsonlines"}, DYNAMIC_STREAM])
def test_only_stream_makes_it_a_stream(options: dict[str, Any]) -> None:
    assert not parse({"prompt": "Hi."}, **options).formatter.stream
    assert parse({"prompt": "Hi.", "stream": True}, **options).formatter.stream


def test_an_error_ends_a_stream() -> None:
    formatter = parse({"prompt": "Hi.", "stream": True}).formatter
    formatter.push(said("Good"))
    (line,) = lines(formatter.error(errors.GenerationError("lost")))
    assert (line["error"], line["code"], line["details"]["finish_reason"]) == ("lost", 424, "error")


def test_several_prompts() -> None:
    assert [request.prompt for request in parse({"prompt": ["a", "b"]}).requests] == ["a", "b"]


def test_parameters_without_effect_are_reported_as_ignored() -> None:
    formatter = parse({"prompt": "Hi.", "parameters": {"max_new_tokens": 3}, "temperature": 0, "top_p": 0.5}).formatter
    assert formatter.headers["x-ignored-parameters"] == "parameters,top_p"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"prompt": "Hi.", "inputs": "Hi."},
            "inputs: not together with prompt; send inputs (and parameters) or prompt",
        ),
        ({"prompt": 5}, "prompt: expected a string, an array of strings"),
        ({"prompt": "Hi.", "max_tokens": "x"}, "max_tokens: expected an integer"),
        ({"prompt": "Hi.", "stream": "yes"}, "stream: expected true or false, got a string"),
        ({"prompt": "Hi.", "adapter": "tom"}, "adapter: this model has no adapters"),
        ({"inputs": "Hi.", "adapter": "tom"}, "adapter: this model has no adapters"),
        ({"inputs": "Hi.", "adapters": ["", "tom"]}, "adapters: this model has no adapters"),
    ],
)
def test_refusals(body: Any, message: str) -> None:
    given = inputs("predict", body, "lmi")
    with pytest.raises(errors.ServingError) as caught:
        LMI.parse(given, model())
    assert caught.value.message.startswith(message)
    refused = LMI.error(caught.value, model(), operation="predict", inputs=given)
    assert refused.status == 424 and message.encode() in refused.body


def test_the_base_model_may_be_named() -> None:
    (request,) = parse({"prompt": "Hi.", "adapter": ""}).requests
    assert request.ignored == ()
