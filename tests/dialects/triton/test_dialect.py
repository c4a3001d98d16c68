"""Request -> required response, as Triton's generate extension, KServe's v2 protocol and the wire decisions say."""

from __future__ import annotations

import inspect
import json
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from djl_python.config import ModelConfig, Options
from djl_python.core import errors
from djl_python.core.engine_info import EngineInfo
from djl_python.core.errors import ModelNotFoundError, ParameterError, PayloadError, ServingError
from djl_python.core.model_files.download_part import DownloadPart
from djl_python.core.model_files.model_card import ModelCard
from djl_python.core.types import Delta, Finish, FinishReason, SamplingParams, Token
from djl_python.dialects import all_dialects
from djl_python.dialects.shared.base import Answer, Kind, Parsed
from djl_python.dialects.shared.views import ModelStatus, RequestCounts
from djl_python.dialects.triton.dialect import TritonDialect
from djl_python.inputs import Input
from djl_python.ipc.protocol import Call

TRITON = TritonDialect()
MODEL = ModelConfig(name="mymodel")


def inputs(body: Any, operation: str = "generate", **headers: str) -> Input:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    # What curl -d says when it is told nothing else, and what Triton's documents send with binary tensors.
    kind = "application/octet-stream" if headers else "application/x-www-form-urlencoded"
    sent = {"content-type": kind} | {name.replace("_", "-"): value for name, value in headers.items()}
    return Input.from_call(Call(1, "triton", operation, "POST", "/v2", (), sent, data))


def parse(body: Any, operation: str = "generate", *, version: str = "", headers: Any = None, **options: Any) -> Parsed:
    model = ModelConfig(name="mymodel", version=version, option=Options(**options))
    return TRITON.parse(inputs(body, operation, **(headers or {})), model)


def finish(text: str) -> Finish:
    return Finish(reason=FinishReason.EOS, text=text, prompt="What?", prompt_tokens=2, generated_tokens=3)


def delta(text: str, whole: str | None = None, choice: int = 0) -> Delta:
    return Delta(
        choice=choice, tokens=(Token(1, text, -1.0),), text=text, finish=None if whole is None else finish(whole)
    )


def run(parsed: Parsed) -> list[bytes]:
    """What each step of "Deep", nothing, " Learning", the end gives."""
    push = parsed.formatter.push
    steps = [push(delta("Deep")), push(delta("")), push(delta(" Learning")), push(delta("", "Deep Learning"))]
    return [*steps, parsed.formatter.end()]


def events(data: bytes) -> list[Any]:
    assert data.endswith(b"\n\n")
    return [json.loads(event.removeprefix(b"data: ")) for event in data.split(b"\n\n")[:-1]]


# ------------------------------------------------------------------------------------------------ generate


def test_generate_as_the_document_shows_it() -> None:
    body = b'{"id": "42", "text_input": "client input", "parameters": {"stream": false, "temperature": 0}}'
    parsed = parse(body)
    (request,) = parsed.requests
    assert request.prompt == "client input" and request.sampling == SamplingParams(max_new_tokens=30)
    assert parsed.formatter.headers == {"content-type": "application/json"}
    *steps, last = run(parsed)
    assert steps == [b"", b"", b"", b""]
    assert json.loads(last) == {
        "id": "42",
        "model_name": "mymodel",
        "model_version": "1",
        "text_output": "Deep Learning",
    }


def test_the_id_is_there_only_if_sent_and_the_version_is_the_models() -> None:
    assert json.loads(run(parse({"text_input": "a"}, version="7"))[-1]) == {
        "model_name": "mymodel",
        "model_version": "7",
        "text_output": "Deep Learning",
    }


def test_an_empty_id_is_none() -> None:
    assert b'"id"' not in b"".join(run(parse({"text_input": "a", "id": ""})))
    assert b'"id"' not in b"".join(run(infer({"id": "", "inputs": [TEXT]})))


def test_the_prompt_may_be_an_array_of_one() -> None:
    (request,) = parse({"text_input": ["a"], "exclude_input_in_output": False}).requests
    assert request.prompt == "a"
    assert run(parse({"text_input": ["a"], "exclude_input_in_output": False}))[-1].count(b'"text_output":"aDeep') == 1


def test_texts_may_be_arrays_inside_too() -> None:
    (request,) = parse({"text_input": "a", "parameters": {"stop": ["x", "y"], "bad_words": ["z"]}}).requests
    assert request.text.stop_sequences == ("x", "y")
    assert request.bad_sequences == ("z",)


def test_the_name_of_the_prompt_may_be_a_text_in_it() -> None:
    (request,) = parse({"text_input": '"text_input"', "stop": "text_input"}).requests
    assert request.prompt == '"text_input"'


def test_generate_gives_one_answer_whatever_stream_says() -> None:
    parsed = parse({"text_input": "a", "stream": True})
    assert not parsed.formatter.stream
    assert parsed.formatter.headers["x-ignored-parameters"] == "stream"
    assert b"".join(run(parsed)).count(b"text_output") == 1


def test_the_prompt_is_repeated_only_where_that_is_asked_for() -> None:
    for operation in ("generate", "generate_stream"):
        parsed = parse({"text_input": "Say: ", "exclude_input_in_output": False}, operation)
        data = b"".join(run(parsed))
        pieces = [json.loads(data)] if operation == "generate" else events(data)
        assert "".join(piece["text_output"] for piece in pieces) == "Say: Deep Learning"


def test_a_stream_has_an_event_for_each_piece_of_text() -> None:
    parsed = parse({"text_input": "a", "id": "7", "stream": True}, "generate_stream")
    assert parsed.formatter.stream
    assert parsed.formatter.headers == {"content-type": "text/event-stream; charset=utf-8"}
    steps = run(parsed)
    assert [bool(step) for step in steps] == [True, False, True, False, False]
    assert steps[0] == (b'data: {"model_name":"mymodel","model_version":"1","text_output":"Deep","id":"7"}\n\n')
    assert [event["text_output"] for event in events(b"".join(steps))] == ["Deep", " Learning"]


def test_a_stream_without_text_has_one_event() -> None:
    formatter = parse({"text_input": "a"}, "generate_stream").formatter
    assert formatter.push(delta("", "")) == b""
    assert [event["text_output"] for event in events(formatter.end())] == [""]


def test_a_stream_that_is_not_to_stream_is_one_event() -> None:
    parsed = parse({"text_input": "a", "parameters": {"stream": False}}, "generate_stream")
    assert not parsed.formatter.stream
    assert [event["text_output"] for event in events(b"".join(run(parsed)))] == ["Deep Learning"]


def test_an_error_after_the_first_response() -> None:
    error = errors.WorkerDiedError("it died")
    assert parse({"text_input": "a"}, "generate_stream").formatter.error(error) == b'data: {"error":"it died"}\n\n'
    assert (
        TRITON.stream_error(error, {"content-type": "text/event-stream; charset=utf-8"})
        == b'data: {"error":"it died"}\n\n'
    )
    assert TRITON.stream_error(error, {"content-type": "application/json"}) == b'{"error":"it died"}'


# ------------------------------------------------------------------------------------------------ parameters


def test_parameters_stand_inside_or_beside_and_inside_wins() -> None:
    parsed = parse({"text_input": "a", "max_tokens": 5, "parameters": {"max_tokens": 7}})
    assert parsed.requests[0].sampling.max_new_tokens == 7
    assert "x-ignored-parameters" not in parsed.formatter.headers
    (request,) = parse({"text_input": "a", "max_tokens": "wrong", "parameters": {"max_tokens": 7}}).requests
    assert request.sampling.max_new_tokens == 7
    (request,) = parse({"text_input": "a", "max_new_tokens": 5, "seed": None}).requests
    assert request.sampling.max_new_tokens == 5


def test_inside_wins_under_either_name() -> None:
    for inside, beside in (("max_tokens", "max_new_tokens"), ("max_new_tokens", "max_tokens")):
        parsed = parse({"text_input": "a", beside: 5, "parameters": {inside: 7}})
        assert parsed.requests[0].sampling.max_new_tokens == 7
        assert parsed.formatter.headers["x-ignored-parameters"] == beside
    own = tensor("max_new_tokens", "INT32", [5])
    parsed = infer({"inputs": [TEXT, own], "parameters": {"max_tokens": 7}})
    assert parsed.requests[0].sampling.max_new_tokens == 7
    assert parsed.formatter.headers["x-ignored-parameters"] == "max_new_tokens"


def test_null_is_as_good_as_nothing() -> None:
    body = {
        "text_input": "a",
        "id": None,
        "mood": None,
        "max_new_tokens": None,
        "parameters": {"max_tokens": 7, "x": None},
    }
    parsed = parse(body, unknown_parameters="error")
    assert parsed.requests == parse({"text_input": "a", "max_tokens": 7}).requests
    assert "x-ignored-parameters" not in parsed.formatter.headers


def test_the_same_may_be_said_twice() -> None:
    (request,) = parse({"text_input": "a", "max_tokens": 5, "max_new_tokens": 5, "min_length": 5}).requests
    assert (request.sampling.max_new_tokens, request.sampling.min_new_tokens) == (5, 5)


def test_every_parameter() -> None:
    body = {
        "text_input": "a",
        "max_tokens": 9,
        "min_length": 2,
        "temperature": 0.5,
        "top_k": 4,
        "top_p": 0.75,
        "min_p": 0.125,
        "random_seed": -1,
        "repetition_penalty": 1.5,
        "presence_penalty": 1,
        "frequency_penalty": -2,
        "ignore_eos": True,
        "stop_words": ["x", "", "y"],
        "bad_words": "not this",
        "truncate": 3,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    }
    parsed = parse(body)
    (request,) = parsed.requests
    sampling = msgspec.to_builtins(request.sampling)
    assert sampling == {
        "max_new_tokens": 9,
        "min_new_tokens": 2,
        "do_sample": True,
        "temperature": 0.5,
        "top_k": 4,
        "top_p": 0.75,
        "min_p": 0.125,
        "seed": 2**64 - 1,
        "repetition_penalty": 1.5,
        "presence_penalty": 1.0,
        "frequency_penalty": -2.0,
        "ignore_eos": True,
    }
    assert request.text.stop_sequences == ("x", "y") and request.bad_sequences == ("not this",)
    assert request.text.include_stop_str_in_output and not request.text.skip_special_tokens
    assert request.truncate == 3
    assert "x-ignored-parameters" not in parsed.formatter.headers


@pytest.mark.parametrize(
    ("parameters", "draws"),
    [
        ({}, False),
        ({"temperature": 0}, False),
        ({"temperature": 1.0}, True),
        ({"temperature": 0.1}, True),
        ({"top_k": 1}, False),
        ({"top_k": 2}, True),
        ({"top_k": 0}, False),
        ({"top_p": 1.0}, False),
        ({"top_p": 0.9}, True),
        ({"temperature": 0, "top_p": 0.9}, False),
        ({"do_sample": True}, True),
        ({"do_sample": False, "temperature": 0.5}, False),
        ({"do_sample": True, "temperature": 0}, False),
    ],
)
def test_when_tokens_are_drawn(parameters: dict[str, Any], draws: bool) -> None:
    (request,) = parse({"text_input": "a", "parameters": parameters}).requests
    assert request.sampling.do_sample is draws


def test_without_a_seed_one_is_drawn() -> None:
    seeds = {parse({"text_input": "a", "temperature": 1}).requests[0].sampling.seed for _ in range(3)}
    assert len(seeds) == 3


def test_parameters_without_effect_are_reported_as_ignored() -> None:
    parsed = parse({"text_input": "a", "top_p": 0.5, "temperature": 0, "seed": 1, "mood": "good", "beam": {"w": 1}})
    assert parsed.formatter.headers["x-ignored-parameters"] == "beam,mood,seed,top_p"
    assert parsed.requests[0].ignored == ("beam", "mood", "seed", "top_p")
    assert parse({"text_input": "a", "random_seed": 1}).requests[0].ignored == ("random_seed",)


def test_unknown_parameters_can_be_refused() -> None:
    for body in ({"mood": "good"}, {"parameters": {"mood": "good"}}):
        with pytest.raises(ParameterError, match="mood: no such parameter"):
            parse({"text_input": "a", **body}, unknown_parameters="error")


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        (b"", None, "the request body is empty, expected a JSON object"),
        (b"{", None, "the request body is not valid JSON"),
        (b"[1]", None, r"the request body: expected a JSON object, got \[1\]"),
        ({}, "text_input", "text_input: required, expected a non-empty string"),
        ({"text_input": ""}, "text_input", "text_input: expected a non-empty string"),
        ({"text_input": []}, "text_input", "text_input: expected a non-empty string or"),
        ({"text_input": ["a", "b"]}, "text_input", "text_input: expected a non-empty string or"),
        (b'{"text_input": "a", "max_tokens": 1, "text_input": "a"}', "text_input", "text_input: given twice"),
        (
            {"text_input": "a", "parameters": {"stop": [1]}},
            "parameters.stop[0]",
            r"parameters.stop\[0\]: expected a string",
        ),
        ({"text_input": "a", "id": 42}, "id", "id: expected a string, got 42"),
        ({"text_input": "a", "parameters": [1]}, "parameters", r"parameters: expected an object, got \[1\]"),
        (
            {"text_input": "a", "parameters": {"seed": [1]}},
            "parameters.seed",
            r"parameters.seed: expected a string, a number or a boolean, got \[1\]",
        ),
        (
            {"text_input": "a", "parameters": {"mood": {}}},
            "parameters.mood",
            "parameters.mood: expected a string, a number or a boolean, got {}",
        ),
        (
            {"text_input": "a", "parameters": {"temperature": -1}},
            "parameters.temperature",
            "parameters.temperature: expected a number >= 0, got -1",
        ),
        ({"text_input": "a", "top_p": 0}, "top_p", "top_p: expected a number > 0 and <= 1, got 0"),
        ({"text_input": "a", "max_tokens": "5"}, "max_tokens", 'max_tokens: expected an integer >= 1, got "5"'),
        (
            {"text_input": "a", "max_tokens": 5, "max_new_tokens": 6},
            "max_new_tokens",
            "max_new_tokens: the same as max_tokens, and they differ",
        ),
        (
            {"text_input": "a", "min_tokens": 31},
            "min_tokens",
            r"min_tokens: expected at most max_tokens \(30\), got 31",
        ),
        ({"text_input": "a", "seed": 2**64}, "seed", "seed: expected a 64-bit integer"),
    ],
)
def test_bad_bodies(body: Any, field: str | None, message: str) -> None:
    with pytest.raises((PayloadError, ParameterError), match=message) as caught:
        parse(body)
    assert isinstance(caught.value, PayloadError | ParameterError)
    assert caught.value.field == field
    answer = TRITON.error(caught.value, MODEL, inputs=inputs(body))
    assert answer.status == 400 and json.loads(answer.body) == {"error": caught.value.message}


# ------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.PayloadError("x"), 400),
        (errors.ParameterError("x"), 400),
        (errors.ModelNotNamedError("x"), 400),
        (errors.ModelNotFoundError("x"), 404),
        (errors.MethodError("x"), 405),
        (errors.TooLargeError("x"), 413),
        (errors.GenerationError("x"), 500),
        (errors.WorkerDiedError("x"), 500),
        (errors.PredictTimeoutError("x"), 500),
        (errors.HandlerError("x"), 500),
        (errors.ModelLoadError("x"), 500),
        (errors.OverloadedError("x"), 503),
        (errors.UnavailableError("x"), 503),
    ],
)
def test_errors_before_the_first_response(error: ServingError, status: int) -> None:
    answer = TRITON.error(error, MODEL, inputs=inputs(b"", "generate_stream"))
    assert (answer.status, json.loads(answer.body)) == (status, {"error": "x"})
    assert answer.headers["content-type"] == "application/json"
    assert ("retry-after" in answer.headers) == (status == 503)
    assert status in TRITON.errors


def test_a_prompt_that_is_too_long_is_told_of_the_field_it_was_in() -> None:
    body = json.loads(TRITON.error(errors.ContextLengthError(9, None, 8), MODEL).body)
    assert body["error"].startswith("text_input: 9 tokens, expected at most 7")
    of_the_model = errors.ContextLengthError(9, None, 6, reason="option.max_input_tokens", at_least=True)
    body = json.loads(TRITON.error(of_the_model, MODEL).body)
    assert body["error"].startswith("text_input: at least 9 tokens, expected at most 5 (option.max_input_tokens)")


# ------------------------------------------------------------------------------------------------ infer


def tensor(name: str, datatype: str, data: list[Any], shape: list[int] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape or [len(data)], "data": data, **more}


def infer(body: Any, **more: Any) -> Parsed:
    return parse(body, "infer", **more)


def test_infer_as_json() -> None:
    parsed = infer({"id": "i", "inputs": [tensor("text_input", "BYTES", ["a"])], "parameters": {"max_tokens": 4}})
    assert parsed.requests[0].prompt == "a" and parsed.requests[0].sampling.max_new_tokens == 4
    assert not parsed.formatter.stream
    assert json.loads(b"".join(run(parsed))) == {
        "id": "i",
        "model_name": "mymodel",
        "model_version": "1",
        "outputs": [{"name": "text_output", "datatype": "BYTES", "shape": [1], "data": ["Deep Learning"]}],
    }
    assert parsed.formatter.headers == {"content-type": "application/json"}


def test_infer_says_what_has_no_effect() -> None:
    body = {"inputs": [TEXT, tensor("stream", "BOOL", [True])], "id": None, "beside": 1}
    parsed = infer(body | {"parameters": {"mood": "good", "top_p": 0.5, "temperature": 0}})
    assert "id" not in json.loads(b"".join(run(parsed)))
    assert parsed.formatter.headers["x-ignored-parameters"] == "beside,mood,stream,top_p"


def test_infer_refuses_inputs_that_there_are_not() -> None:
    with pytest.raises(PayloadError, match='inputs: there is no input "nonsense", expected text_input, sampling_param'):
        infer({"inputs": [TEXT, tensor("nonsense", "FP32", [1.0])]})


def test_infer_takes_the_parameters_of_vllm_s_clients() -> None:
    """A JSON object, whose numbers and flags may be strings; a parameter of its own goes before."""
    given = '{"temperature": "0.5", "max_tokens": "4", "ignore_eos": "True", "stop": "7", "seed": 3, "mood": "good"}'
    parsed = infer({"inputs": [TEXT, tensor("sampling_parameters", "BYTES", [given]), tensor("seed", "INT32", [5])]})
    (request,) = parsed.requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.max_new_tokens, sampling.ignore_eos, sampling.seed) == (0.5, 4, True, 5)
    assert request.text.stop_sequences == ("7",)
    assert parsed.formatter.headers["x-ignored-parameters"] == "mood"


@pytest.mark.parametrize("given", ["{", "[1]", '"text"'])
def test_infer_takes_parameters_as_an_object_only(given: str) -> None:
    with pytest.raises(PayloadError, match="sampling_parameters: expected a JSON object, got"):
        infer({"inputs": [TEXT, tensor("sampling_parameters", "BYTES", [given])]})


def test_infer_may_say_that_all_is_json() -> None:
    body = msgspec.json.encode({"inputs": [TEXT]})
    (request,) = infer(body, headers={"inference_header_content_length": str(len(body))}).requests
    assert request.prompt == "a"


def test_infer_repeats_the_prompts_that_ask_for_it() -> None:
    texts = tensor("text_input", "BYTES", ["Say: ", "Tell: "])
    parsed = infer({"inputs": [texts, tensor("exclude_input_in_output", "BOOL", [False, True])]})
    for choice in (0, 1):
        parsed.formatter.push(delta("hi", "hi", choice))
    assert json.loads(parsed.formatter.end())["outputs"][0]["data"] == ["Say: hi", "hi"]


def test_infer_of_several_prompts_keeps_their_shape_and_order() -> None:
    tensors = [
        tensor("text_input", "BYTES", [["a"], ["b"]], [2, 1]),
        tensor("max_tokens", "INT32", [[3], [4]], [2, 1]),
        tensor("stop", "BYTES", ["x"]),
        tensor("ignore_eos", "BOOL", [True]),
        tensor("temperature", "FP32", [0.5]),
    ]
    parsed = infer({"inputs": tensors})
    assert [request.prompt for request in parsed.requests] == ["a", "b"]
    assert [request.sampling.max_new_tokens for request in parsed.requests] == [3, 4]
    assert all(request.text.stop_sequences == ("x",) and request.sampling.ignore_eos for request in parsed.requests)
    push = parsed.formatter.push
    assert push(delta("two", "two", choice=1)) == push(delta("on", choice=0)) == push(delta("e", "one")) == b""
    (output,) = json.loads(parsed.formatter.end())["outputs"]
    assert (output["shape"], output["data"]) == ([2, 1], ["one", "two"])


def binary_request(*, outputs: Any = None) -> tuple[bytes, dict[str, str]]:
    """As tritonclient writes it: JSON, then the tensors."""
    text = struct.pack("<I", 3) + "hé".encode()
    numbers = struct.pack("<i", 5)
    described = [
        {"name": "text_input", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(text)}},
        {"name": "max_tokens", "datatype": "INT32", "shape": [1], "parameters": {"binary_data_size": len(numbers)}},
    ]
    asked = {"outputs": outputs} if outputs else {"parameters": {"binary_data_output": True}}
    head = msgspec.json.encode({"inputs": described, **asked})
    return head + text + numbers, {"inference_header_content_length": str(len(head))}


def test_infer_in_binary() -> None:
    body, headers = binary_request()
    parsed = infer(body, headers=headers)
    assert parsed.requests[0].prompt == "hé" and parsed.requests[0].sampling.max_new_tokens == 5
    assert parsed.requests[0].ignored == ()
    data = b"".join(run(parsed))
    length = int(parsed.formatter.headers["inference-header-content-length"])
    assert parsed.formatter.headers["content-type"] == "application/octet-stream"
    (output,) = json.loads(data[:length])["outputs"]
    assert output == {"name": "text_output", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 17}}
    assert data[length:] == struct.pack("<I", 13) + b"Deep Learning"


def test_several_texts_in_binary() -> None:
    texts, words = ("hé", "b", "c"), ("stop", "halt", "")
    data = [b"".join(struct.pack("<I", len(one.encode())) + one.encode() for one in part) for part in (texts, words)]
    described = [
        {"name": name, "datatype": "BYTES", "shape": [3], "parameters": {"binary_data_size": len(part)}}
        for name, part in zip(("text_input", "stop"), data, strict=True)
    ]
    head = msgspec.json.encode({"inputs": described})
    parsed = infer(head + b"".join(data), headers={"inference_header_content_length": str(len(head))})
    assert tuple(request.prompt for request in parsed.requests) == texts
    assert [request.text.stop_sequences for request in parsed.requests] == [("stop",), ("halt",), ()]


def test_an_output_says_for_itself_whether_it_is_binary() -> None:
    for output in ({"name": "text_output"}, {"name": "text_output", "parameters": {}}):
        asked = {"outputs": [output]}
        assert "data" in json.loads(b"".join(run(infer({"inputs": [TEXT], **asked}))))["outputs"][0]
        parsed = infer({"inputs": [TEXT], "parameters": {"binary_data_output": True}, **asked})
        assert parsed.formatter.headers["content-type"] == "application/octet-stream"
    body, headers = binary_request(outputs=[{"name": "text_output", "parameters": {"binary_data": False}}])
    assert json.loads(b"".join(run(infer(body, headers=headers))))["outputs"][0]["data"] == ["Deep Learning"]


@pytest.mark.parametrize(
    ("datatype", "layout", "value"),
    [("UINT8", "<B", 7), ("INT64", "<q", 7), ("UINT16", "<H", 7), ("INT16", "<h", 7), ("UINT32", "<I", 7)],
)
def test_a_number_may_have_any_type(datatype: str, layout: str, value: int) -> None:
    data = struct.pack(layout, value)
    described = [
        tensor("text_input", "BYTES", ["a"]),
        {"name": "top_k", "datatype": datatype, "shape": [1], "parameters": {"binary_data_size": len(data)}},
    ]
    head = msgspec.json.encode({"inputs": described})
    parsed = infer(head + data, headers={"inference_header_content_length": str(len(head))})
    assert parsed.requests[0].sampling.top_k == 7


TEXT = tensor("text_input", "BYTES", ["a"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "inputs: required, expected a non-empty array"),
        ({"inputs": []}, "inputs: expected a non-empty array"),
        ({"inputs": [tensor("x", "INT32", [1])]}, "inputs: expected a tensor text_input of datatype BYTES"),
        ({"inputs": [tensor("text_input", "INT32", [1])]}, "text_input: expected datatype BYTES, got INT32"),
        ({"inputs": [tensor("text_input", "BYTES", ["a", ""])]}, "text_input: expected non-empty texts"),
        ({"inputs": [tensor("text_input", "BYTES", [], [0])]}, "text_input: expected non-empty texts"),
        ({"inputs": [tensor("text_input", "BYTES", ["a"], [2])]}, r"inputs\[0\]: expected 2 elements, .* got 1"),
        ({"inputs": [tensor("text_input", "BYTES", [1])]}, r"inputs\[0\].data: expected BYTES, got 1"),
        ({"inputs": [tensor("text_input", "TEXT", ["a"])]}, r"inputs\[0\].datatype: expected .*got \"TEXT\""),
        ({"inputs": [TEXT, TEXT]}, r"inputs\[1\].name: there is another tensor text_input"),
        ({"inputs": [TEXT, tensor("top_k", "UINT8", [256])]}, r"inputs\[1\].data: expected UINT8, got 256"),
        ({"inputs": [TEXT, tensor("top_k", "INT8", [True])]}, r"inputs\[1\].data: expected INT8, got true"),
        ({"inputs": [TEXT, tensor("top_k", "INT8", [1, 2])]}, "top_k: expected 1 element, got 2"),
        ({"inputs": [TEXT, tensor("temperature", "FP32", [-1.0])]}, "temperature: expected a number >= 0, got -1.0"),
        ({"inputs": [TEXT], "id": 1}, "id: expected a string, got 1"),
        ({"inputs": [TEXT], "outputs": [{"name": "logits"}]}, r"outputs\[0\].name: expected text_output, got 'logits'"),
        (
            {"inputs": [TEXT], "outputs": [{"name": "text_output", "parameters": {"classification": 1}}]},
            r"outputs\[0\].parameters.classification: not served",
        ),
        (
            {"inputs": [TEXT], "outputs": [{"name": "text_output", "parameters": {"shared_memory_region": "r"}}]},
            r"outputs\[0\].parameters.shared_memory_region: not served",
        ),
        (
            {"inputs": [tensor("text_input", "BYTES", ["a", "b"]), tensor("top_k", "INT8", [1, 2, 3])]},
            "top_k: expected 1 element, or 2, one for each prompt, got 3",
        ),
        (
            {"inputs": [TEXT], "parameters": {"binary_data_output": 1}},
            r"^parameters\.binary_data_output: expected true or false, got 1",
        ),
        (
            {"inputs": [TEXT], "outputs": [{"name": "text_output", "parameters": {"binary_data": "false"}}]},
            r'^outputs\[0\]\.parameters\.binary_data: expected true or false, got "false"',
        ),
        (
            {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1]}]},
            r"inputs\[0\].data: required, expected an array of BYTES",
        ),
        (
            {"inputs": [TEXT | {"data": None, "parameters": {"shared_memory_region": "r"}}]},
            r"inputs\[0\].data: shared memory is not served",
        ),
        (
            {"inputs": [TEXT | {"parameters": {"binary_data_size": 5}}]},
            r"inputs\[0\].parameters.binary_data_size: expected an integer >= 0 and <= 0",
        ),
    ],
)
def test_bad_tensors(body: Any, message: str) -> None:
    with pytest.raises((PayloadError, ParameterError), match=message):
        infer(body)


@pytest.mark.parametrize(
    ("data", "size", "message"),
    [
        (b"\x05\0\0\0ab", 6, "its binary data ends within an element"),
        (b"\x05\0", 2, "its binary data ends within an element"),
        (b"\x01\0\0\0\xff", 5, "an element is not UTF-8 text"),
        (b"\x01\0\0\0abc", 5, "2 bytes of binary data belong to no input"),
    ],
)
def test_bad_binary_data(data: bytes, size: int, message: str) -> None:
    described = {"name": "text_input", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": size}}
    head = msgspec.json.encode({"inputs": [described]})
    with pytest.raises(PayloadError, match=message):
        infer(head + data, headers={"inference_header_content_length": str(len(head))})
    for length in ("9999", "-1", "all", "\N{SUPERSCRIPT TWO}", "9" * 5000):
        with pytest.raises(PayloadError, match="inference-header-content-length: expected a length of at most"):
            infer(head + data, headers={"inference_header_content_length": length})


def test_a_wrong_parameter_is_named_by_its_path() -> None:
    for body, field in (
        ({"parameters": {"temperature": -1}}, "parameters.temperature"),
        ({"temperature": -1}, "temperature"),
        ({"parameters": {"temperature": None}, "temperature": -1}, "temperature"),
    ):
        with pytest.raises(ParameterError) as caught:
            parse({"text_input": "a"} | body)
        assert caught.value.field == field


def test_do_sample_at_temperature_zero_is_reported_as_ignored() -> None:
    body = {"text_input": "a", "parameters": {"do_sample": True, "temperature": 0, "seed": 3}}
    (request,) = parse(body).requests
    assert (request.sampling.do_sample, request.ignored) == (False, ("do_sample", "seed"))


# ------------------------------------------------------------------------------------------------ pages


class View:
    """A server with two versions of `a`, and `b`, which is loading."""

    def __init__(self) -> None:
        ready = ModelStatus(
            config=ModelConfig(name="a", version="2"),
            ready=True,
            failed=False,
            workers=2,
            registered_s=0.0,
            in_flight=0,
            queued=0,
            tally=RequestCounts(succeeded=3, succeeded_s=1.5, failed=1, failed_s=0.25, last_s=12.5),
        )
        failed = replace(ready, config=ModelConfig(name="a", version="1"), ready=False, failed=True, workers=0)
        self.models = [failed, ready, replace(failed, config=ModelConfig(name="b"), failed=False)]
        self.unloaded = [replace(failed, config=ModelConfig(name="c"), failed=False)]
        self.lost = ""
        self.ready = False
        self.done: list[tuple[str, str]] = []

    def select(self, name: str = "", version: str = "", unversioned: str = "") -> ModelStatus:
        for model in reversed(self.models):
            if model.config.name == name and version in ("", model.config.version or unversioned):
                return model
        raise ModelNotFoundError("there is no such model")

    async def load(self, name: str) -> None:
        self.done.append(("load", name))

    async def unload(self, name: str) -> None:
        self.done.append(("unload", name))

    async def measure(self) -> None:
        self.done.append(("measure", ""))

    async def remove(self, name: str) -> None:
        self.done.append(("remove", name))

    async def copy(self, name: str, new_name: str) -> None:
        self.done.append(("copy", name))

    async def card(self, model: ModelStatus, *, whole: bool = False) -> ModelCard:
        return ModelCard()

    async def pull(self, name: str, url: str) -> AsyncIterator[DownloadPart]:
        self.done.append(("pull", name))
        yield DownloadPart("sha256:" + 64 * "0", 1, 1)


async def page(operation: str, view: View | None = None, body: Any = b"", **values: str) -> Answer:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    answer = TRITON.page(operation, view or View(), values, data)
    return await answer if inspect.isawaitable(answer) else answer


async def shown(operation: str, **more: Any) -> Any:
    answer = await page(operation, **more)
    assert answer.status == 200 and answer.headers["content-type"] == "application/json"
    return json.loads(answer.body)


async def test_the_server() -> None:
    described = await shown("server")
    assert described["name"] == "djl-serving" and "generate" in described["extensions"]


async def test_health_has_no_body() -> None:
    view = View()
    assert await page("live", view) == Answer(200, b"", {})
    assert (await page("ready", view)).status == 503
    view.ready = True
    assert await page("ready", view) == Answer(200, b"", {})
    assert (await page("model_ready", model="a")).status == 200
    assert (await page("model_ready", model="a", version="1")).status == 503
    assert (await page("model_ready", model="b", version="1")).status == 503
    with pytest.raises(ModelNotFoundError):
        await page("model_ready", model="b", version="2")


async def test_metadata() -> None:
    assert await shown("metadata", model="a") == {
        "name": "a",
        "versions": ["1", "2"],
        "platform": "djl_python",
        "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [-1]}],
        "outputs": [{"name": "text_output", "datatype": "BYTES", "shape": [-1]}],
    }
    assert (await shown("metadata", model="b", version="1"))["versions"] == ["1"]


async def test_the_configuration_lists_every_parameter_as_a_tensor() -> None:
    config = await shown("config", model="a")
    tensors = {tensor["name"]: tensor for tensor in config["input"]}
    assert tensors["text_input"] == {"name": "text_input", "data_type": "TYPE_STRING", "dims": [-1], "optional": False}
    assert tensors["max_tokens"] == {"name": "max_tokens", "data_type": "TYPE_INT64", "dims": [-1], "optional": True}
    assert {tensors[name]["data_type"] for name in ("temperature", "top_p")} == {"TYPE_FP32"}
    assert {tensors[name]["data_type"] for name in ("stop", "bad_words")} == {"TYPE_STRING"}
    assert tensors["ignore_eos"]["data_type"] == "TYPE_BOOL"
    del config["input"]
    assert config == {
        "name": "a",
        "platform": "djl_python",
        "backend": "djl_python",
        "max_batch_size": 0,
        "output": [{"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1], "optional": False}],
        "instance_group": [{"name": "a", "kind": "KIND_AUTO", "count": 2}],
        "model_transaction_policy": {"decoupled": False},
        "parameters": {},
    }


async def test_the_configuration_tells_what_runs_the_model() -> None:
    view = View()
    view.models[1] = replace(view.models[1], engine=EngineInfo(runner="native", quantize="int4", weight_bytes=9))
    parameters = (await shown("config", view=view, model="a"))["parameters"]
    assert [parameters[name]["string_value"] for name in ("runner", "quantize", "weight_bytes")] == [
        "native",
        "int4",
        "9",
    ]


async def test_statistics() -> None:
    (of_one,) = (await shown("stats", model="a"))["model_stats"]
    assert of_one == {
        "name": "a",
        "version": "2",
        "last_inference": 12500,
        "inference_count": 3,
        "execution_count": 3,
        "inference_stats": {
            "success": {"count": 3, "ns": 1_500_000_000},
            "fail": {"count": 1, "ns": 250_000_000},
        },
    }
    assert [model["name"] for model in (await shown("all_stats"))["model_stats"]] == ["a", "a", "b"]


async def test_the_repository() -> None:
    entries = await shown("index")
    assert [(entry["name"], entry["version"], entry["state"]) for entry in entries] == [
        ("a", "1", "UNAVAILABLE"),
        ("a", "2", "READY"),
        ("b", "1", "LOADING"),
        ("c", "1", "UNAVAILABLE"),
    ]
    assert [entry["reason"] for entry in entries] == ["it failed to load", "", "", "unloaded"]
    assert [entry["version"] for entry in await shown("index", body={"ready": True})] == ["2"]
    with pytest.raises(ParameterError, match="ready: expected true or false, got 1"):
        await page("index", body={"ready": 1})


async def test_loading_and_unloading() -> None:
    view = View()
    assert await page("unload", view, {"parameters": {"unload_dependents": False}}, model="a") == Answer(200, b"", {})
    assert await page("load", view, model="a") == Answer(200, b"", {})
    assert view.done == [("unload", "a"), ("load", "a")]
    with pytest.raises(PayloadError, match=r"parameters.config: a model is loaded with the files and settings"):
        await page("load", view, {"parameters": {"config": "{}"}}, model="a")
    for operation in ("load", "unload"):
        with pytest.raises(ParameterError, match="parameters: expected an object, got 5"):
            await page(operation, view, {"parameters": 5}, model="a")
    assert len(view.done) == 2


# ------------------------------------------------------------------------------------------------ the table


def test_every_page_has_its_function_and_every_route_its_words() -> None:
    from djl_python.dialects.triton.pages import PAGES

    assert {route.operation for route in TRITON.routes if route.kind is Kind.PAGE} == set(PAGES)
    assert all(route.summary and route.responses for route in TRITON.routes)
    assert isinstance(all_dialects()["triton"], TritonDialect)
