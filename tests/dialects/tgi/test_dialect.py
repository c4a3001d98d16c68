"""Request -> required response, held against TGI's own OpenAPI document, and every refusal in its router's words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from djl_python.config import ModelConfig, Options
from djl_python.core import errors
from djl_python.core.engine_info import EngineInfo
from djl_python.core.types import Branching, Chat, Delta, Finish, FinishReason, Grammar, Timings, Token, TopToken
from djl_python.dialects.shared.base import Parsed
from djl_python.dialects.shared.views import ModelStatus, QueriedModel, ServerView, TokenSpan
from djl_python.dialects.tgi.dialect import TgiDialect
from djl_python.inputs import Input
from djl_python.ipc.protocol import Call
from tests.dialects.tgi.tgi_schema import check, documented

TGI = TgiDialect()
PATHS = {"compat_generate": "/", "generate": "/generate", "generate_stream": "/generate_stream"}


def model(**options: Any) -> ModelConfig:
    return ModelConfig(name="m", option=Options(**options))


def inputs(operation: str, body: Any, content_type: str | None = "application/json") -> Input:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    headers = {} if content_type is None else {"content-type": content_type}
    return Input.from_call(Call(1, "tgi", operation, "POST", f"/{operation}", (), headers, data))


def parse(operation: str, body: Any, **options: Any) -> Parsed:
    return TGI.parse(inputs(operation, body), model(**options))


def parameters(given: Mapping[str, Any], operation: str = "generate", **options: Any) -> Parsed:
    return parse(operation, {"inputs": "What?", "parameters": given}, **options)


TOKENS = (
    Token(304, "Deep", -0.5, top=(TopToken(304, "Deep", -0.5), TopToken(2, "</s>", -2.0, True))),
    Token(11157, " Learning", -1.25, top=(TopToken(11157, " Learning", -1.25),)),
    Token(2, "", -0.125, special=True),
)
PREFILL = (Token(1, "<s>", None, True), Token(9, "What?", -3.0))
TGI_TOKENS = [
    {"id": 304, "text": "Deep", "logprob": -0.5, "special": False},
    {"id": 11157, "text": " Learning", "logprob": -1.25, "special": False},
    {"id": 2, "text": "", "logprob": -0.125, "special": True},
]
TGI_TOP = [
    [
        {"id": 304, "text": "Deep", "logprob": -0.5, "special": False},
        {"id": 2, "text": "</s>", "logprob": -2.0, "special": True},
    ],
    [{"id": 11157, "text": " Learning", "logprob": -1.25, "special": False}],
    [],
]


def finish(**changes: Any) -> Finish:
    given: dict[str, Any] = {
        "reason": FinishReason.EOS,
        "text": "Deep Learning",
        "prompt": "What?",
        "prompt_tokens": 2,
        "generated_tokens": 3,
        "seed": 42,
        "timings": Timings(validation_s=0.001, queue_s=0.0025, inference_s=0.3),
    }
    return Finish(**given | changes)


def delta(tokens: Sequence[Token], finished: Finish | None = None, choice: int = 0) -> Delta:
    return Delta(choice=choice, tokens=tuple(tokens), text="".join(token.text for token in tokens), finish=finished)


def whole(parsed: Parsed, finished: Finish | None = None) -> Any:
    push = parsed.formatter.push
    assert push(delta(TOKENS[:1])) == push(delta(())) == push(delta(TOKENS[1:], finished or finish())) == b""
    return json.loads(parsed.formatter.end())


def events(data: bytes) -> list[Any]:
    assert data.endswith(b"\n\n")
    return [json.loads(event.removeprefix(b"data: ")) for event in data.split(b"\n\n")[:-1]]


def streamed(parsed: Parsed, **changes: Any) -> list[Any]:
    steps = [parsed.formatter.push(delta(TOKENS[:1])), parsed.formatter.push(delta(()))]
    assert steps[1] == b""
    steps += [parsed.formatter.push(delta(TOKENS[1:], finish(**changes))), parsed.formatter.end()]
    return events(b"".join(steps))


# ------------------------------------------------------------------------------------------------ answers


def test_generate() -> None:
    answer = whole(parse("generate", {"inputs": "What?"}))
    check(answer, "GenerateResponse")
    assert answer == {"generated_text": "Deep Learning"}


def test_details() -> None:
    answer = whole(parameters({"details": True}))
    check(answer, "GenerateResponse")
    assert answer["details"] == {
        "finish_reason": "eos_token",
        "generated_tokens": 3,
        "seed": 42,
        "prefill": [],
        "tokens": TGI_TOKENS,
    }


def test_no_details_by_default() -> None:
    assert "details" not in whole(parameters({"details": False}))
    assert "details" not in whole(parameters({}))


def test_compat_answers_with_a_list_or_a_stream() -> None:
    answer = whole(parse("compat_generate", {"inputs": "What?", "parameters": {"details": True}}))
    assert len(answer) == 1
    check(answer[0], "GenerateResponse")
    for stream in (False, None):
        assert isinstance(whole(parse("compat_generate", {"inputs": "What?", "stream": stream})), list)
    parsed = parse("compat_generate", {"inputs": "What?", "stream": True})
    assert parsed.formatter.headers["content-type"] == "text/event-stream"
    for event in streamed(parsed):
        check(event, "StreamResponse")


def test_stream() -> None:
    parsed = parameters({"details": True}, "generate_stream")
    answer = streamed(parsed)
    for event in answer:
        check(event, "StreamResponse")
    assert [event["index"] for event in answer] == [1, 2, 3]
    assert [event["token"] for event in answer] == TGI_TOKENS
    assert [event["generated_text"] for event in answer] == [None, None, "Deep Learning"]
    assert [event["details"] for event in answer[:2]] == [None, None]
    assert answer[2]["details"] == {
        "finish_reason": "eos_token",
        "generated_tokens": 3,
        "seed": 42,
        "input_length": 2,
    }


def test_stream_without_details() -> None:
    answer = streamed(parse("generate_stream", {"inputs": "What?"}))
    assert answer[-1]["generated_text"] == "Deep Learning"
    assert answer[-1]["details"] is None


def test_a_quiet_stream_sends_comments() -> None:
    assert parse("generate_stream", {"inputs": "What?"}).formatter.keep_alive == b":\n\n"
    assert parse("generate", {"inputs": "What?"}).formatter.keep_alive == b""


def test_an_error_ends_a_stream() -> None:
    parsed = parse("generate_stream", {"inputs": "What?"})
    parsed.formatter.push(delta(TOKENS[:1]))
    (event,) = events(parsed.formatter.error(errors.WorkerDiedError("the worker has ended")))
    check(event, "ErrorResponse")
    assert event == {"error": "Request failed during generation: the worker has ended", "error_type": "generation"}
    assert events(
        TGI.stream_error(errors.WorkerDiedError("the worker has ended"), {"content-type": "text/event-stream"})
    ) == [event]


def test_best_of_sequences_are_the_others() -> None:
    parsed = parameters({"best_of": 2, "do_sample": True, "details": True, "top_n_tokens": 2, "return_full_text": True})
    assert parsed.requests[0].branching == Branching(n=2, best_of=2, ranked=True)
    for choice in (1, 0):
        assert parsed.formatter.push(delta(TOKENS, finish(text=f" {choice}", seed=choice), choice)) == b""
    answer = json.loads(parsed.formatter.end())
    check(answer, "GenerateResponse")
    assert answer["generated_text"] == "What? 0"
    assert answer["details"]["seed"] == 0
    assert answer["details"]["best_of_sequences"] == [
        {
            "generated_text": "What? 1",
            "finish_reason": "eos_token",
            "generated_tokens": 3,
            "seed": 1,
            "prefill": [],
            "tokens": TGI_TOKENS,
            "top_tokens": TGI_TOP,
        }
    ]


def test_top_tokens() -> None:
    answer = whole(parameters({"top_n_tokens": 2, "details": True}))
    check(answer, "GenerateResponse")
    assert answer["details"]["top_tokens"] == TGI_TOP
    stream = streamed(parameters({"top_n_tokens": 2}, "generate_stream"))
    for event in stream:
        check(event, "StreamResponse")
    assert [event["top_tokens"] for event in stream] == TGI_TOP


def test_prompt_tokens_imply_details() -> None:
    parsed = parameters({"decoder_input_details": True})
    assert parsed.requests[0].sampling.prompt_logprobs == 0
    answer = whole(parsed, finish(prefill=PREFILL))
    check(answer, "GenerateResponse")
    assert answer["details"]["prefill"] == [
        {"id": 1, "text": "<s>", "logprob": None},
        {"id": 9, "text": "What?", "logprob": -3.0},
    ]


def test_full_text_is_the_prompt_as_it_was_sent() -> None:
    truncated = finish(prompt="at?")
    assert whole(parameters({"return_full_text": True}), truncated)["generated_text"] == "What?Deep Learning"
    parsed = parameters({"return_full_text": True}, "generate_stream")
    assert streamed(parsed)[-1]["generated_text"] == "What?Deep Learning"


def test_headers() -> None:
    parsed = parse("generate", {"inputs": "Wh\u00e4t?"}, device="cpu")
    whole(parsed)
    assert parsed.formatter.headers == {
        "content-type": "application/json",
        "x-compute-type": "cpu",
        "x-compute-characters": "5",
        "x-compute-time": "0.303500000",
        "x-total-time": "304",
        "x-validation-time": "1",
        "x-queue-time": "2",
        "x-inference-time": "300",
        "x-time-per-token": "100",
        "x-prompt-tokens": "2",
        "x-generated-tokens": "3",
    }
    stream = parse("generate_stream", {"inputs": "What?"}, compute_type="gpu+optimized").formatter.headers
    assert stream["x-compute-type"] == "gpu+optimized"
    assert stream["x-compute-characters"] == "5"


@pytest.mark.parametrize(("device", "expected"), [("auto", "cpu"), ("cpu", "cpu"), ("cuda", "gpu"), ("cuda:1", "gpu")])
def test_the_compute_type_is_a_kind_of_device(monkeypatch: pytest.MonkeyPatch, device: str, expected: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # auto is the CPU then
    assert parse("generate", {"inputs": "x"}, device=device).formatter.headers["x-compute-type"] == expected


# ------------------------------------------------------------------------------------------------ parameters


def test_no_parameters_at_all_samples() -> None:
    for body in ({"inputs": "What?"}, {"inputs": "What?", "parameters": None}):
        (request,) = parse("generate", body).requests
        assert request.sampling.do_sample
        assert request.sampling.max_new_tokens == 100
        assert request.must_fit


@pytest.mark.parametrize(
    ("given", "draws"),
    [
        ({}, False),
        ({"do_sample": False}, False),
        ({"do_sample": True}, True),
        ({"temperature": 0.7}, True),
        ({"temperature": 1.0, "top_p": 1.0, "typical_p": 1.0}, False),
        ({"do_sample": False, "top_k": 5}, True),
        ({"top_p": 0.9}, True),
        ({"typical_p": 0.9}, True),
        ({"repetition_penalty": 1.2, "frequency_penalty": 1}, False),
    ],
)
def test_sampling_is_inferred(given: dict[str, Any], draws: bool) -> None:
    assert parameters(given).requests[0].sampling.do_sample is draws


def test_every_parameter_arrives() -> None:
    given = {
        "do_sample": True,
        "temperature": 0.5,
        "repetition_penalty": 1.03,
        "frequency_penalty": 0.1,
        "top_k": 10,
        "top_p": 0.95,
        "typical_p": 0.9,
        "max_new_tokens": 20,
        "stop": ["photographer"],
        "truncate": 7,
        "seed": 2**64 - 1,
        "top_n_tokens": 5,
        "details": True,
        "watermark": False,
        "adapter_id": None,
        "best_of": 1,
        "grammar": {"type": "regex", "value": "[a-z]+"},
    }
    (request,) = parameters(given).requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.repetition_penalty, sampling.frequency_penalty) == (0.5, 1.03, 0.1)
    assert (sampling.top_k, sampling.top_p, sampling.typical_p) == (10, 0.95, 0.9)
    assert (sampling.max_new_tokens, sampling.seed, sampling.top_logprobs) == (20, 2**64 - 1, 5)
    assert sampling.grammar == Grammar("regex", "[a-z]+")
    assert request.text.stop_sequences == ("photographer",)
    assert request.truncate == 7
    assert request.ignored == ()


def test_a_seed_is_drawn() -> None:
    seeds = {parameters({"do_sample": True}).requests[0].sampling.seed for _ in range(4)}
    assert len(seeds) == 4


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    "grammar",
    [
        {"type": "json", "value": SCHEMA},
        {"type": "json", "value": json.dumps(SCHEMA)},
        {"type": "json_object", "value": SCHEMA},
        {"type": "json_schema", "value": {"name": "a", "schema": SCHEMA}},
    ],
)
def test_grammars(grammar: dict[str, Any]) -> None:
    parsed = parameters({"grammar": grammar}).requests[0].sampling.grammar
    assert parsed is not None
    assert parsed.kind == "json_schema"
    assert json.loads(parsed.source) == {**SCHEMA, "additionalProperties": False}
    assert parsed.field == ""  # what is wrong with it, the engine says in the router's words


def test_nulls_are_as_good_as_nothing() -> None:
    names = [field.name for field in msgspec.structs.fields(parameters_type()) if field.name != "do_sample"]
    (request,) = parameters(dict.fromkeys(names)).requests
    (bare,) = parameters({}).requests
    assert msgspec.structs.replace(request.sampling, seed=0) == msgspec.structs.replace(bare.sampling, seed=0)


def parameters_type() -> type[msgspec.Struct]:
    from djl_python.dialects.tgi.types import GenerateParameters

    return GenerateParameters


@pytest.mark.parametrize(
    ("operation", "body", "ignored"),
    [
        ("generate", {"inputs": "a", "parameters": {"watermark": True}}, "watermark"),
        ("generate", {"inputs": "a", "parameters": {"seed": 3}}, "seed"),
        ("generate", {"inputs": "a", "parameters": {"top_n_tokens": 3}}, "top_n_tokens"),
        ("generate", {"inputs": "a", "parameters": {"max_tokens": 3, "x": None}, "stream": True}, "max_tokens,stream"),
    ],
)
def test_parameters_without_effect_are_reported_as_ignored(operation: str, body: Any, ignored: str) -> None:
    parsed = parse(operation, body)
    assert parsed.formatter.headers["x-ignored-parameters"] == ignored
    assert parsed.requests[0].ignored == tuple(ignored.split(","))


# ------------------------------------------------------------------------------------------------ refusals


def refused(operation: str, body: Any, content_type: str | None = "application/json", **options: Any) -> Any:
    """(status, body) of a request that must not be parsed."""
    given = inputs(operation, body, content_type)
    with pytest.raises(errors.ServingError) as caught:
        TGI.parse(given, model(**options))
    answer = TGI.error(caught.value, model(**options), operation=operation, inputs=given)
    if operation == "generate_stream":
        assert answer.headers["content-type"] == "text/event-stream"
        (shape,) = events(answer.body)
    else:
        assert answer.headers["content-type"] == "application/json"
        shape = json.loads(answer.body)
    check(shape, "ErrorResponse")
    if answer.status == 422:
        assert answer.headers["content-type"] in documented(PATHS[operation], 422)
    return answer.status, shape


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ({"best_of": 0}, {}, "`best_of` must be > 0 and <= 2. Given: 0"),
        ({"best_of": 3, "do_sample": True}, {}, "`best_of` must be > 0 and <= 2. Given: 3"),
        ({"best_of": 2}, {"max_best_of": 1}, "`best_of` != 1 is not allowed for this endpoint"),
        ({"best_of": 2}, {}, "you must use sampling when `best_of` is > 1"),
        ({"best_of": 2, "do_sample": True, "seed": 1}, {}, "`seed` must not be set when `best_of` > 1"),
        ({"temperature": 0}, {}, "`temperature` must be strictly positive"),
        ({"temperature": -0.5}, {}, "`temperature` must be strictly positive"),
        ({"repetition_penalty": 0.0}, {}, "`repetition_penalty` must be strictly positive"),
        ({"frequency_penalty": 2.1}, {}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
        ({"top_p": 0}, {}, "`top_p` must be > 0.0 and < 1.0"),
        ({"top_p": 1.1}, {}, "`top_p` must be > 0.0 and < 1.0"),
        ({"top_k": 0}, {}, "`top_k` must be strictly positive"),
        ({"typical_p": 1.5}, {}, "`typical_p` must be > 0.0 and < 1.0"),
        ({"max_new_tokens": 0}, {}, "`max_new_tokens` must be strictly positive"),
        ({"top_n_tokens": 6}, {}, "`top_n_tokens` must be >= 0 and <= 5. Given: 6"),
        ({"top_n_tokens": 2}, {"max_top_n_tokens": 1}, "`top_n_tokens` must be >= 0 and <= 1. Given: 2"),
        ({"stop": list("abcde")}, {}, "`stop` supports up to 4 stop sequences. Given: 5"),
        ({"truncate": 0}, {}, "`truncate` must be strictly positive. Given: 0"),
        ({"truncate": 0}, {"max_input_tokens": 9}, "`truncate` must be strictly positive and less than 9. Given: 0"),
        ({"truncate": 10}, {"max_model_len": 10}, "`truncate` must be strictly positive and less than 9. Given: 10"),
        ({"seed": 2**64}, {}, "`seed` must be >= 0 and <= 2^64-1. Given: 18446744073709551616"),
        (
            {"adapter_id": "a"},
            {},
            "parameters.adapter_id: this model has no adapters; option.enable_lora=true serves them",
        ),
        (
            {"grammar": {"type": "json", "value": "{"}},
            {},
            "grammar is not valid: expected a JSON schema, got a string that is not JSON: Input data was truncated",
        ),
        ({"top_k": "x"}, {}, 'parameters.top_k: expected an integer >= 1, got "x"'),
        ({"max_new_tokens": 1.5}, {}, "parameters.max_new_tokens: expected an integer >= 1, got 1.5"),
        ({"top_k": True}, {}, "parameters.top_k: expected an integer >= 1, got true"),
        ({"stop": [""]}, {}, 'parameters.stop[0]: expected a non-empty string, got ""'),
        ({"grammar": {"type": "x", "value": ""}}, {}, None),
        ({"grammar": {"type": "regex"}}, {}, None),
    ],
)
def test_validation(given: dict[str, Any], options: dict[str, Any], message: str | None) -> None:
    body = {"inputs": "What?", "parameters": given}
    for operation in ("generate", "compat_generate"):
        status, shape = refused(operation, body, **options)
        assert status == 422
        assert shape["error_type"] == "validation"
        if message is not None:
            assert shape["error"] == f"Input validation error: {message}"


def test_the_best_of_several_are_drawn_whatever_steers_the_draw() -> None:
    (request,) = parameters({"best_of": 2, "temperature": 1.0}).requests
    assert request.sampling.do_sample and request.branching.best_of == 2


def test_alternatives_have_a_place_in_a_stream() -> None:
    for given, operation in (({}, "generate_stream"), ({"details": True}, "generate")):
        formatter = parameters(given | {"top_n_tokens": 2}, operation).formatter
        assert "x-ignored-parameters" not in formatter.headers


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"best_of": 2, "do_sample": True}, "`best_of` != 1 is not supported when streaming tokens"),
        (
            {"decoder_input_details": True},
            "`decoder_input_details` == true is not supported when streaming tokens",
        ),
    ],
)
def test_not_in_a_stream(given: dict[str, Any], message: str) -> None:
    expected = (422, {"error": f"Input validation error: {message}", "error_type": "validation"})
    assert refused("generate_stream", {"inputs": "a", "parameters": given}) == expected
    assert refused("compat_generate", {"inputs": "a", "parameters": given, "stream": True}) == expected


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"inputs": ""}, 422, "Input validation error: `inputs` cannot be empty"),
        ({}, 422, "Input validation error: inputs: required, expected a string"),
        ({"inputs": 3}, 422, "Input validation error: inputs: expected a string, got 3"),
        ({"inputs": "a", "parameters": 3}, 422, "Input validation error: parameters: expected an object, got 3"),
        ([], 400, "the request body: expected a JSON object, got []"),
        (b"{", 400, None),
        (b"", 400, None),
    ],
)
def test_bodies_that_are_none(body: Any, status: int, message: str | None) -> None:
    for operation in PATHS:
        code, shape = refused(operation, body)
        assert (code, shape["error_type"]) == (status, "validation")
        assert message is None or shape["error"] == message


def test_content_types() -> None:
    for content_type in ("application/x-www-form-urlencoded", "text/plain"):
        status, shape = refused("generate", {"inputs": "a"}, content_type)
        assert status == 415
        assert shape["error"] == f"Expected request with `Content-Type: application/json`, got {content_type}"
    for good in (None, "application/json; charset=utf-8", "application/problem+json"):
        assert TGI.parse(inputs("generate", {"inputs": "a"}, good), model()).requests


def test_unknown_parameters_may_be_refused() -> None:
    for given in ({"watermark": True}, {"n": 2}):
        body = {"inputs": "a", "parameters": given}
        status, shape = refused("generate", body, unknown_parameters="error")
        assert status == 422
        assert f"parameters.{next(iter(given))}" in shape["error"]


@pytest.mark.parametrize(
    ("error", "status", "shape"),
    [
        (
            errors.ContextLengthError(2050, None, 2048),
            422,
            {
                "error": "Input validation error: `inputs` must have less than 2048 tokens. Given: 2050",
                "error_type": "validation",
            },
        ),
        (
            errors.ContextLengthError(2000, 100, 2048),
            422,
            {
                "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. "
                "Given: 2000 `inputs` tokens and 100 `max_new_tokens`",
                "error_type": "validation",
            },
        ),
        (
            errors.GenerationError("boom"),
            424,
            {"error": "Request failed during generation: boom", "error_type": "generation"},
        ),
        (
            errors.HandlerError("boom"),
            424,
            {"error": "Request failed during generation: boom", "error_type": "generation"},
        ),
        (errors.OverloadedError("full"), 429, {"error": "Model is overloaded", "error_type": "overloaded"}),
        (errors.UnavailableError("loading"), 503, {"error": "loading", "error_type": "healthcheck"}),
        (
            errors.ServingError("boom"),
            500,
            {"error": "Incomplete generation: boom", "error_type": "incomplete_generation"},
        ),
        (errors.TooLargeError("big"), 413, {"error": "big", "error_type": "too_large"}),
        (errors.MethodError("no GET"), 405, {"error": "no GET", "error_type": "method"}),
        (errors.ModelNotFoundError("no m"), 404, {"error": "no m", "error_type": "model_not_found"}),
    ],
)
def test_errors(error: errors.ServingError, status: int, shape: Any) -> None:
    check(shape, "ErrorResponse")
    answer = TGI.error(error, operation="generate")
    assert (answer.status, json.loads(answer.body)) == (status, shape)
    assert status in TGI.errors
    assert ("retry-after" in answer.headers) == (status in (429, 503))
    streaming = TGI.error(error, operation="generate_stream")
    assert (streaming.status, events(streaming.body)) == (status, [shape])


# ------------------------------------------------------------------------------------------------ queries and pages


class Model(QueriedModel):
    """A model whose tokens are words."""

    model_id = "some/model"
    dtype = "bf16"
    task = "text-generation"
    pooling = ""
    labels = ()
    max_model_len = 2048
    max_batch_tokens = 4096
    capacity = 64
    engine = EngineInfo(runner="native", dtype="bfloat16", quantize="int8")

    def __init__(self, **options: Any) -> None:
        self.config = model(**options)

    def tokenize(self, text: str, add_special_tokens: bool = True) -> list[TokenSpan]:
        spans = [TokenSpan(1, "", 0, 0)] if add_special_tokens else []
        at = 0
        for word in text.split(" "):
            spans.append(TokenSpan(len(word) + 10, word, at, at + len(word)))
            at += len(word) + 1
        return spans

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, field: str = "ids") -> str:
        return " ".join(self.entries(ids))

    def entries(self, ids: Sequence[int]) -> list[str]:
        return ["x" * (one - 10) for one in ids]

    def render(self, chat: Chat) -> str:
        return " ".join(f"{message['role']}: {message['content']}" for message in chat.messages)


def query(operation: str, body: Any, **options: Any) -> Any:
    answer = TGI.query(inputs(operation, body), Model(**options))
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    if isinstance(body, dict):
        asked = TGI.query(inputs(operation, {**body, "zzz": 1}), Model(**options))
        assert asked.headers == {**answer.headers, "x-ignored-parameters": "zzz"}
    return json.loads(answer.body)


def test_tokenize() -> None:
    answer = query("tokenize", {"inputs": "the \u00e9cole"})
    check(answer, "TokenizeResponse")
    assert answer == [
        {"id": 1, "text": "", "start": 0, "stop": 0},
        {"id": 13, "text": "the", "start": 0, "stop": 3},
        {"id": 15, "text": "\u00e9cole", "start": 4, "stop": 9},
    ]
    assert query("tokenize", {"inputs": "a b c", "parameters": {"truncate": 1}}) == [
        {"id": 11, "text": "c", "start": 4, "stop": 5}
    ]
    with pytest.raises(errors.PayloadError, match="inputs: expected a string, got 3"):
        query("tokenize", {"inputs": 3})
    with pytest.raises(errors.ParameterError, match="`truncate` must be strictly positive"):
        query("tokenize", {"inputs": "a b", "parameters": {"truncate": -1}})


def test_chat_tokenize() -> None:
    answer = query("chat_tokenize", {"messages": [{"role": "user", "content": "Hi"}]})
    check(answer["tokenize_response"], "TokenizeResponse")
    assert answer == {
        "tokenize_response": [
            {"id": 15, "text": "user:", "start": 0, "stop": 5},
            {"id": 12, "text": "Hi", "start": 6, "stop": 8},
        ],
        "templated_text": "user: Hi",
    }
    with pytest.raises(errors.PayloadError, match="messages: required"):
        query("chat_tokenize", {})


def test_info() -> None:
    answer = query("info", b"", max_best_of=3, max_client_batch_size=7, revision="0" * 40)
    engine = answer.pop("engine")  # the document's objects are open, and `check` closes them
    assert (engine["runner"], engine["dtype"], engine["quantize"], engine["refusal"]) == (
        *("native", "bfloat16", "int8", ""),
    )
    check(answer, "Info")
    assert answer["model_id"] == "some/model"
    assert answer["model_sha"] == "0" * 40
    assert (answer["max_input_tokens"], answer["max_total_tokens"]) == (2047, 2048)
    assert answer["max_concurrent_requests"] == 1000 + 64  # the queue and what is with the worker
    assert (answer["max_best_of"], answer["max_stop_sequences"], answer["max_client_batch_size"]) == (3, 4, 7)
    limited = query("info", b"", max_input_tokens=100, revision="main")
    del limited["engine"]
    check(limited, "Info")
    assert (limited["max_input_tokens"], limited["model_sha"]) == (100, None)


@pytest.mark.parametrize("path_operation", ["health"])
def test_health(path_operation: str) -> None:
    class View(ServerView):
        models: Sequence[ModelStatus] = ()
        ready = True

    view = View()  # type: ignore[abstract]
    answer = TGI.page(path_operation, view, {}, b"")
    assert (answer.status, answer.body) == (200, b"")
    view.ready = False
    answer = TGI.page(path_operation, view, {}, b"")
    check(json.loads(answer.body), "ErrorResponse")
    assert (answer.status, json.loads(answer.body)) == (503, {"error": "unhealthy", "error_type": "healthcheck"})


def test_mindie_takes_over_one_path() -> None:
    mindie = model(tgi_dialect="mindie")
    assert TGI.answering_dialect("generate_stream", mindie, "", b"") == "mindie"
    assert TGI.answering_dialect("generate", mindie, "", b"") == "tgi"
    assert TGI.answering_dialect("generate_stream", model(), "", b"") == "tgi"
