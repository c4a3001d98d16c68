"""DJL's base class of rolling batches: requests join, take steps, leave, and fail together."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from djl_python.input_parser import ParsedInput
from djl_python.inputs import Input
from djl_python.outputs import Output
from djl_python.request import Request
from djl_python.request_io import TextInput, Token
from djl_python.rolling_batch.rolling_batch import (
    FINISH_REASON_MAPPER,
    RollingBatch,
    filter_unused_generation_params,
    stop_on_any_exception,
)
from djl_python.utils import rolling_batch_inference


class Letters(RollingBatch):
    """Each step answers with the prompt's next letter."""

    @stop_on_any_exception
    def inference(self, requests: list[Request]) -> list[dict[str, Any]]:
        self.preprocess_requests(self.get_new_requests(requests))
        for request in self.active_requests:
            text = request.input_text or ""
            at = len(request.request_output.sequences[0].tokens)
            if text[at] == "!":
                raise RuntimeError("no exclamations")
            last = at == len(text) - 1
            request.set_next_token(Token(at, text[at], -1.0), last, "length" if last else None)
        return self.postprocess_results()

    def preprocess_requests(self, requests: list[Request]) -> None:
        self.joined = [request.id for request in requests]


def request(number: int, text: str, **parameters: Any) -> Request:
    return Request(TextInput(number, parameters=parameters, input_text=text))


def test_requests_join_and_leave_between_steps() -> None:
    batch = Letters()
    long, short = request(0, "abc"), request(1, "x")
    assert [result["last"] for result in batch.inference([long])] == [False]
    assert batch.joined == [0]
    results = batch.inference([long, short])
    assert batch.joined == [1]
    assert [result["last"] for result in results] == [False, True]
    assert results[1] == {"data": '{"generated_text":"x"}', "last": True, "content_type": "application/json"}
    assert batch.active_requests == [long]
    (result,) = batch.inference([long])
    assert json.loads(result["data"]) == {"generated_text": "abc"}
    assert batch.active_requests == []


def test_an_exception_ends_the_active_requests(caplog: pytest.LogCaptureFixture) -> None:
    batch = Letters()
    requests = [request(0, "ab", stream=True), request(1, "!")]
    results = batch.inference(requests)
    assert [result["last"] for result in results] == [True, True]
    lines = [json.loads(line) for line in results[0]["data"].splitlines()]
    assert lines[-1]["token"]["error_msg"] == "RuntimeError: no exclamations"
    assert lines[-1]["details"] == {"finish_reason": "error"}
    assert json.loads(results[1]["data"])["details"] == {"finish_reason": "error"}
    assert batch.active_requests == []
    assert "a step of the rolling batch failed" in caplog.text


def test_a_whole_dynamic_batch_is_answered_together() -> None:
    inputs = Input()
    inputs.properties["batch_size"] = "3"
    parsed = ParsedInput({1: "no text"}, [request(0, "abc"), request(2, "d")], inputs.get_batches())
    output = rolling_batch_inference(parsed, inputs, Output(), Letters())
    assert output.content.keys == ["batch_000.data", "batch_001.data", "batch_002.data"]
    texts = [json.loads(value) for value in output.content.values]
    assert (texts[0], texts[2]) == ({"generated_text": "abc"}, {"generated_text": "d"})
    assert texts[1]["error"] == "no text"
    assert output.properties["batch_001.code"] == "424"


def test_a_client_that_leaves_takes_its_request_along() -> None:
    batch, inputs = Letters(), Input()
    parsed = ParsedInput({}, [request(0, "abc", stream=True)], [inputs])
    parsed.requests[0].parameters["stream"] = True
    stream = rolling_batch_inference(parsed, inputs, Output(), batch).stream_content
    first = next(stream)  # type: ignore[call-overload]
    assert json.loads(first)["token"]["text"] == "a"
    stream.close()  # type: ignore[union-attr]
    assert batch.active_requests == []
    (result,) = batch.inference([request(0, "x")])
    assert json.loads(result["data"]) == {"generated_text": "x"}


def test_unused_parameters_are_named(caplog: pytest.LogCaptureFixture) -> None:
    given = {"top_k": 1, "mood": 2}
    with caplog.at_level(logging.WARNING):
        assert filter_unused_generation_params(given, {"top_k"}, "steam") == {"top_k": 1, "mood": 2}
    assert "steam does not take the parameters mood" in caplog.text
    assert filter_unused_generation_params(given, {"top_k"}, "steam", remove_unused_params=True) == {"top_k": 1}


def test_a_subclass_may_leave_out_the_tokenizer() -> None:
    with pytest.raises(RuntimeError, match="Letters has no tokenizer"):
        Letters("configs").get_tokenizer()
    with pytest.raises(TypeError):
        RollingBatch()  # type: ignore[abstract]
    assert FINISH_REASON_MAPPER[1] == "eos_token"
