"""Request -> required response, as LMI's schema, the wire decisions and TGI's shapes say."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from djl_python.config import ModelConfig, Options
from djl_python.core import errors
from djl_python.core.types import Branching, Delta, Finish, FinishReason, Token, TopToken
from djl_python.dialects import all_dialects, dialect
from djl_python.dialects.lmi.dialect import LmiDialect
from djl_python.dialects.shared.base import Parsed
from djl_python.dialects.tgi.dialect import TgiDialect
from djl_python.inputs import Input
from djl_python.ipc.protocol import Call
from tests.dialects.tgi.tgi_schema import check

LMI = LmiDialect()


def model(**options: Any) -> ModelConfig:
    return ModelConfig(name="m", option=Options(**options))


def inputs(body: Any, content_type: str = "application/json") -> Input:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    call = Call(1, "lmi", "predict", "POST", "/invocations", (), {"content-type": content_type}, data)
    return Input.from_call(call)


def parse(body: Any, **options: Any) -> Parsed:
    return LMI.parse(inputs(body), model(**options))


TOKENS = (
    Token(304, "Deep", -0.5, top=(TopToken(304, "Deep", -0.5), TopToken(2, "</s>", -2.0, True))),
    Token(11157, " Learning", -1.25, top=(TopToken(11157, " Learning", -1.25),)),
    Token(2, "", -0.125, special=True),
)
PREFILL = (Token(1, "<s>", None, True), Token(9, "What?", -3.0, top=(TopToken(9, "What?", -3.0),)))


def finish(**changes: Any) -> Finish:
    given: dict[str, Any] = {
        "reason": FinishReason.EOS,
        "text": "Deep Learning",
        "prompt": "What?",
        "prompt_tokens": 2,
        "generated_tokens": 3,
        "seed": 42,
    }
    return Finish(**given | changes)


def delta(tokens: tuple[Token, ...], finished: Finish | None = None, choice: int = 0) -> Delta:
    return Delta(choice=choice, tokens=tokens, text="".join(token.text for token in tokens), finish=finished)


def answer(parsed: Parsed, **changes: Any) -> tuple[str, list[bytes]]:
    """(content-type, what each step gave)."""
    push = parsed.formatter.push
    steps = [
        push(delta(TOKENS[:1])),
        push(delta(())),
        push(delta(TOKENS[1:2])),
        push(delta(TOKENS[2:], finish(**changes))),
    ]
    steps[-1] += parsed.formatter.end()
    return parsed.formatter.headers["content-type"], steps


def jsonlines(data: bytes) -> list[Any]:
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def events(data: bytes) -> list[Any]:
    assert data.endswith(b"\n\n")
    return [json.loads(event.removeprefix(b"data: ")) for event in data.split(b"\n\n")[:-1]]


LMI_TOKENS = [
    {"id": 304, "text": "Deep", "log_prob": -0.5},
    {"id": 11157, "text": " Learning", "log_prob": -1.25},
    {"id": 2, "text": "", "log_prob": -0.125, "special_token": True},
]
TGI_TOKENS = [
    {"id": 304, "text": "Deep", "logprob": -0.5, "special": False},
    {"id": 11157, "text": " Learning", "logprob": -1.25, "special": False},
    {"id": 2, "text": "", "logprob": -0.125, "special": True},
]
DETAILS = {"finish_reason": "eos_token", "generated_tokens": 3, "inputs": "What?"}


# ------------------------------------------------------------------------------------------------ answers


def test_json() -> None:
    content_type, steps = answer(parse({"inputs": "What?"}))
    assert content_type == "application/json"
    assert steps[:-1] == [b"", b"", b""]
    assert json.loads(steps[-1]) == {"generated_text": "Deep Learning"}


def test_json_with_details() -> None:
    _, steps = answer(parse({"inputs": "What?", "parameters": {"details": True}}))
    assert json.loads(steps[-1]) == {"generated_text": "Deep Learning", "details": {**DETAILS, "tokens": LMI_TOKENS}}


def test_the_other_sequences_come_after_the_best() -> None:
    formatter = parse({"inputs": "What?", "parameters": {"details": True}}).formatter
    for choice in (1, 0):
        assert formatter.push(delta(TOKENS, finish(text=f"text {choice}"), choice)) == b""
    answer = json.loads(formatter.end())
    assert answer["generated_text"] == "text 0"
    assert answer["details"]["best_of_sequences"] == [
        {"finish_reason": "eos_token", "generated_tokens": 3, "generated_text": "text 1", "tokens": LMI_TOKENS}
    ]


def test_several_sequences_come_with_details() -> None:
    parsed = parse({"inputs": "What?", "parameters": {"n": 2, "best_of": 3, "details": False}})
    assert parsed.requests[0].branching == Branching(n=2, best_of=3, ranked=True)
    for choice in (0, 1):
        parsed.formatter.push(delta(TOKENS, finish(), choice))
    assert len(json.loads(parsed.formatter.end())["details"]["best_of_sequences"]) == 1
    # The best of several is an answer without details.
    parsed = parse({"inputs": "What?", "parameters": {"best_of": 3}})
    assert parsed.requests[0].branching == Branching(n=1, best_of=3, ranked=True)
    parsed.formatter.push(delta(TOKENS, finish()))
    assert json.loads(parsed.formatter.end()) == {"generated_text": "Deep Learning"}


@pytest.mark.parametrize("framing", [{"stream": True}, {"parameters": {"output_formatter": "sse"}}])
def test_several_sequences_are_refused_in_a_stream(framing: dict[str, Any]) -> None:
    body = {"inputs": "x", **framing, "parameters": {"n": 2, **framing.get("parameters", {})}}
    with pytest.raises(
        errors.ParameterError, match=r"parameters\.n: expected 1 where the answer is streamed"
    ) as caught:
        parse(body)
    refusal = LMI.error(caught.value, model(), inputs=inputs(body))
    assert refusal.status == 424
    assert json.loads(refusal.body)["details"]["finish_reason"] == "error"


def test_full_text() -> None:
    for stream in (False, True):
        _, steps = answer(parse({"inputs": "What?", "parameters": {"return_full_text": True}, "stream": stream}))
        assert json.loads(steps[-1])["generated_text"] == "What?Deep Learning"


def test_jsonlines() -> None:
    content_type, steps = answer(parse({"inputs": "What?", "stream": True}))
    assert content_type == "application/jsonlines"
    assert steps[1] == b""
    lines = jsonlines(b"".join(steps))
    assert lines == [
        *({"token": token} for token in LMI_TOKENS[:2]),
        {"token": LMI_TOKENS[2], "generated_text": "Deep Learning"},
    ]


def test_jsonlines_with_details() -> None:
    _, steps = answer(parse({"inputs": "What?", "parameters": {"details": True}, "stream": True}))
    assert jsonlines(b"".join(steps))[-1] == {
        "token": LMI_TOKENS[2],
        "generated_text": "Deep Learning",
        "details": DETAILS,
    }


def test_several_tokens_in_one_step_are_several_lines() -> None:
    formatter = parse({"inputs": "What?", "stream": True}).formatter
    lines = jsonlines(formatter.push(delta(TOKENS, finish())))
    assert [line["token"]["id"] for line in lines] == [304, 11157, 2]
    assert ["generated_text" in line for line in lines] == [False, False, True]


def test_sse() -> None:
    parsed = parse({"inputs": "What?", "stream": True}, output_formatter="sse")
    content_type, steps = answer(parsed)
    assert content_type == "text/event-stream"
    assert events(b"".join(steps))[0] == {"token": LMI_TOKENS[0]}


def test_prompt_tokens() -> None:
    for asked in ({"decoder_input_details": True}, {"prompt_logprobs": 1}, {"details": True, "prompt_logprobs": 1}):
        parsed = parse({"inputs": "What?", "parameters": asked})
        details = json.loads(answer(parsed, prefill=PREFILL)[1][-1])["details"]
        assert details["prefill"] == [
            {"id": 1, "text": "<s>", "log_prob": None, "special_token": True},
            {"id": 9, "text": "What?", "log_prob": -3.0},
        ]
        assert details["prefill_top_tokens"] == [[], [{"id": 9, "text": "What?", "log_prob": -3.0}]]


def test_alternatives() -> None:
    first = [
        {"id": 304, "text": "Deep", "log_prob": -0.5},
        {"id": 2, "text": "</s>", "log_prob": -2.0, "special_token": True},
    ]
    for name in ("top_n_tokens", "logprobs"):
        parsed = parse({"inputs": "What?", "parameters": {name: 2}, "stream": True})
        assert jsonlines(answer(parsed)[1][0]) == [{"token": LMI_TOKENS[0], "top_tokens": first}]
        assert "x-ignored-parameters" not in parsed.formatter.headers
        parsed = parse({"inputs": "What?", "parameters": {name: 2, "details": True}})
        details = json.loads(answer(parsed)[1][-1])["details"]
        assert [len(top) for top in details["top_tokens"]] == [2, 1, 0]
        assert details["top_tokens"][0] == first
        parsed = parse({"inputs": "What?", "parameters": {name: 2}})
        assert parsed.formatter.headers["x-ignored-parameters"] == name


def test_tgi_compat() -> None:
    content_type, steps = answer(parse({"inputs": "What?"}, tgi_compat=True))
    assert content_type == "application/json"
    assert json.loads(steps[-1]) == [
        {
            "generated_text": "Deep Learning",
            "details": {"seed": 42, **DETAILS, "prefill": [], "tokens": TGI_TOKENS},
        }
    ]
    _, steps = answer(parse({"inputs": "What?", "parameters": {"details": False}}, tgi_compat=True))
    assert json.loads(steps[-1]) == [{"generated_text": "Deep Learning"}]


def test_the_others_of_several_are_tgis_too() -> None:
    asked = {"best_of": 2, "top_n_tokens": 2, "details": True}
    formatter = parse({"inputs": "What?", "parameters": asked}, tgi_compat=True).formatter
    for choice in (0, 1):
        formatter.push(delta(TOKENS, finish(text=f"text {choice}"), choice))
    (first,) = json.loads(formatter.end())
    (other,) = first["details"]["best_of_sequences"]
    check(other, "BestOfSequence")
    assert (other["generated_text"], other["seed"], other["prefill"]) == ("text 1", 42, [])
    assert other["tokens"] == TGI_TOKENS
    assert [len(top) for top in other["top_tokens"]] == [2, 1, 0]


def test_tgi_compat_stream() -> None:
    content_type, steps = answer(parse({"inputs": "What?", "stream": True}, tgi_compat=True), seed=None)
    assert content_type == "text/event-stream"
    assert events(b"".join(steps)) == [
        {"index": 1, "token": TGI_TOKENS[0], "generated_text": None, "details": None},
        {"index": 2, "token": TGI_TOKENS[1], "generated_text": None, "details": None},
        {
            "index": 3,
            "token": TGI_TOKENS[2],
            "generated_text": "Deep Learning",
            "details": {**DETAILS, "seed": None, "input_length": 2},
        },
    ]


@pytest.mark.parametrize(
    ("option", "asked", "stream", "tgi", "expected"),
    [
        (None, None, None, False, "application/json"),
        (None, None, False, False, "application/json"),
        (None, None, True, False, "application/jsonlines"),
        (None, None, True, True, "text/event-stream"),
        ("json", None, True, False, "application/jsonlines"),
        ("json", None, True, True, "text/event-stream"),
        ("jsonlines", None, None, False, "application/jsonlines"),
        ("jsonlines", None, True, True, "application/jsonlines"),
        ("jsonlines", None, False, False, "application/json"),
        ("sse", None, True, False, "text/event-stream"),
        ("sse", None, None, False, "text/event-stream"),
        ("sse", "json", None, False, "application/json"),
        ("sse", "json", True, False, "application/jsonlines"),
        ("sse", "jsonlines", None, False, "application/jsonlines"),
        ("json", "sse", None, False, "text/event-stream"),
        (None, "jsonlines", False, False, "application/jsonlines"),
    ],
)
def test_framing(option: str | None, asked: str | None, stream: bool | None, tgi: bool, expected: str) -> None:
    body = {"inputs": "x", "parameters": {"output_formatter": asked}, "stream": stream}
    formatter = parse(body, output_formatter=option, tgi_compat=tgi).formatter
    assert formatter.headers["content-type"] == expected
    assert formatter.stream is (expected != "application/json")


# ------------------------------------------------------------------------------------------------ requests


def test_a_request() -> None:
    request = parse({"inputs": "x", "parameters": {"truncate": 5, "bad_sequences": ["no"], "stop": "s"}}).requests[0]
    assert (request.prompt, request.truncate, request.bad_sequences) == ("x", 5, ("no",))
    assert request.text.stop_sequences == ("s",)
    assert request.add_special_tokens


def test_plain_text_is_a_prompt() -> None:
    assert LMI.parse(inputs(b"Hello", "text/plain; charset=utf-8"), model()).requests[0].prompt == "Hello"


def test_a_form_is_a_request() -> None:
    form = inputs(
        b"inputs=Hello+you&parameters=%7B%22max_new_tokens%22%3A7%7D&stream=true", "application/x-www-form-urlencoded"
    )
    parsed = LMI.parse(form, model())
    assert (parsed.requests[0].prompt, parsed.requests[0].sampling.max_new_tokens) == ("Hello you", 7)
    assert parsed.formatter.stream


def test_json_that_says_it_is_a_form() -> None:
    with pytest.raises(errors.PayloadError, match="for JSON send Content-Type: application/json"):
        LMI.parse(inputs(b'{"inputs": "x"}', "application/x-www-form-urlencoded"), model())


def test_parameters_without_effect_are_named_in_a_header() -> None:
    parsed = parse({"inputs": "x", "parameters": {"seed": 1, "zz\n": 2, "aa": 3}, "model": "m", "n": None})
    assert parsed.requests[0].ignored == ("aa", "model", "seed", "zz\n")
    assert parsed.formatter.headers["x-ignored-parameters"] == "aa,model,seed,'zz\\n'"
    assert "x-ignored-parameters" not in parse({"inputs": "x"}).formatter.headers
    many = parse({"inputs": "x", "parameters": {f"unknown{n}": n for n in range(999)}})
    assert len(many.formatter.headers["x-ignored-parameters"]) < 1100
    assert len(many.requests[0].ignored) == 999


def adapted(
    query: tuple[tuple[str, str], ...] = (),
    headers: dict[str, str] | None = None,
    options: dict[str, Any] | None = None,
    adapters_of_the_model: tuple[str, ...] = (),
    **fields: Any,
) -> Parsed:
    body = msgspec.json.encode({"inputs": "x"} | fields)
    headers = {"content-type": "application/json"} | (headers or {})
    call = Call(1, "lmi", "predict", "POST", "/invocations", query, headers, body)
    known = dict.fromkeys(adapters_of_the_model, "/adapters")
    return LMI.parse(Input.from_call(call), msgspec.structs.replace(model(**(options or {})), adapters=known))


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"adapters": "a"}, "adapters"),
        ({"adapters": ["", "a"]}, "adapters"),
        ({"adapters": "a", "messages": [{"role": "user", "content": "Hi."}]}, "adapters"),
        ({"query": (("adapter", "a"),)}, "adapter"),
        ({"headers": {"x-amzn-sagemaker-adapter-identifier": "a"}}, "x-amzn-sagemaker-adapter-identifier"),
        ({"headers": {"x-amzn-sagemaker-custom-attributes": "adapter=a"}}, "x-amzn-sagemaker-custom-attributes"),
    ],
)
def test_an_adapter_is_refused(given: dict[str, Any], name: str) -> None:
    with pytest.raises(errors.ParameterError) as caught:
        adapted(**given)
    assert caught.value.message.startswith(f"{name}: this model has no adapters; option.enable_lora=true serves")


@pytest.mark.parametrize(
    "given",
    [
        {"adapters": "tom"},
        {"adapters": ["tom"]},
        {"adapter": "tom"},
        {"inputs": None, "adapters": "tom", "messages": [{"role": "user", "content": "Hi."}]},
        {"inputs": None, "prompt": "Hi.", "adapters": "tom"},
        {"inputs": None, "prompt": "Hi.", "model": "tom"},
        {"query": (("adapter", "tom"),)},
        {"headers": {"x-amzn-sagemaker-adapter-identifier": "tom"}},
        {"headers": {"x-amzn-sagemaker-custom-attributes": "trace=1, adapter=tom"}},
    ],
)
def test_the_ways_to_name_an_adapter(given: dict[str, Any]) -> None:
    (request,) = adapted(adapters_of_the_model=("tom", "ann"), **given).requests
    assert (request.adapter, request.ignored) == ("tom", ())


def test_each_prompt_of_a_batch_has_its_adapter() -> None:
    batch: dict[str, Any] = {"options": {"rolling_batch": "disable"}, "adapters_of_the_model": ("tom",)}
    parsed = adapted(inputs=["a", "b"], adapters=["", "tom"], **batch)
    assert [request.adapter for request in parsed.requests] == ["", "tom"]
    parsed = adapted(inputs=["a", "b"], adapters="tom", **batch)
    assert [request.adapter for request in parsed.requests] == ["tom", "tom"]
    with pytest.raises(errors.ParameterError, match="adapters: expected one for each of 3 prompts, got 2"):
        adapted(inputs=["a", "b", "c"], adapters=["", "tom"], **batch)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("thom", "adapters: there is no adapter thom; expected one of tom, ann; did you mean tom?"),
        (5, "adapters: expected the name of an adapter"),
    ],
)
def test_an_adapter_that_is_not_there(name: Any, message: str) -> None:
    with pytest.raises(errors.ParameterError) as caught:
        adapted(adapters=name, adapters_of_the_model=("tom", "ann"))
    assert caught.value.message == message


@pytest.mark.parametrize("adapters", ["", [], [""], None])
def test_the_base_model_may_be_named_as_an_adapter(adapters: Any) -> None:
    assert "x-ignored-parameters" not in adapted(adapters=adapters, query=(("adapter", ""),)).formatter.headers


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the request body is empty, expected JSON"),
        (b'{"inputs": "x",}', "the request body is not valid JSON"),
        (b'{"inputs": "\xff"}', "the request body is not valid JSON"),
        ([], 'the request body: expected a JSON object such as {"inputs": "..."}, got an array'),
        ("text", 'the request body: expected a JSON object such as {"inputs": "..."}, got a string'),
        ({}, "inputs: required, expected a string"),
        ({"inputs": None}, "inputs: required, expected a string"),
        ({"messages": None}, "inputs: required, expected a string (or prompt, for a completion"),
        ({"inputs": ""}, "inputs: expected a non-empty string or an array of them, got an empty one"),
        ({"inputs": 5}, "inputs: expected a non-empty string or an array of them, got a number"),
        ({"inputs": []}, "inputs: expected a string or an array of strings, got an empty one"),
        ({"inputs": ["a", 1]}, "inputs[1]: expected a non-empty string, got 1"),
        ({"inputs": ["a"], "stream": True}, "inputs: an array can't be streamed"),
        ({"inputs": ["a"], "parameters": {"output_formatter": "sse"}}, "inputs: an array can't be streamed"),
        ({"inputs": ["a"] * 1025}, "inputs: expected at most 1024 sequences together, got 1025 prompts"),
        ({"inputs": "x", "parameters": []}, "parameters: expected an object, got an array"),
        ({"inputs": "x", "stream": "yes"}, "stream: expected true or false, got a string"),
    ],
)
def test_a_wrong_payload(body: Any, message: str) -> None:
    given = inputs(body)
    with pytest.raises(errors.PayloadError) as caught:
        LMI.parse(given, model())
    assert caught.value.message.startswith(message)
    refused = LMI.error(caught.value, model(), inputs=given)
    assert refused.status == 424
    assert refused.headers["content-type"] == "application/json"
    assert json.loads(refused.body) == {"error": caught.value.message, "code": 424}


ERROR_OBJECT = {
    "generated_text": "",
    "details": {"finish_reason": "error", "generated_tokens": None, "inputs": None, "tokens": None},
}
ERROR_LINE = {
    "token": {"id": -1, "text": "", "log_prob": -1, "special_token": True},
    "generated_text": "",
    "details": {"finish_reason": "error", "generated_tokens": None, "inputs": None},
}
WRONG = {"temperature": "hot"}
WRONG_MESSAGE = 'parameters.temperature: expected a number >= 0 (0: greedy), got "hot"'


@pytest.mark.parametrize(
    ("body", "options", "expected"),
    [
        ({"inputs": "x", "parameters": WRONG}, {}, ERROR_OBJECT),
        ({"inputs": "x", "parameters": WRONG, "stream": True}, {}, ERROR_LINE),
        ({"inputs": "x", "parameters": WRONG}, {"output_formatter": "sse"}, ERROR_LINE),
        ({"inputs": "x", "parameters": {**WRONG, "output_formatter": "jsonlines"}}, {}, ERROR_LINE),
        ({"inputs": "x", "parameters": {**WRONG, "output_formatter": ["odd"]}}, {}, ERROR_OBJECT),
        ({"prompt": "x", **WRONG}, {"output_formatter": "sse"}, ERROR_OBJECT),
        ({"prompt": "x", **WRONG, "stream": True}, {}, ERROR_LINE),
    ],
)
def test_a_wrong_parameter(body: Any, options: dict[str, Any], expected: dict[str, Any]) -> None:
    given = inputs(body)
    with pytest.raises(errors.ParameterError) as caught:
        LMI.parse(given, model(**options))
    refused = LMI.error(caught.value, model(**options), inputs=given)
    assert refused.status == 424
    assert json.loads(refused.body) == {**expected, "error": caught.value.message, "code": 424}


def test_an_unknown_output_formatter() -> None:
    with pytest.raises(errors.ParameterError) as caught:
        parse({"inputs": "x", "parameters": {"output_formatter": "xml"}})
    names = "json, json_chat, jsonlines, jsonlines_chat, sse, sse_chat"
    assert caught.value.message == f'parameters.output_formatter: expected {names}, got "xml"'


def test_tgi_clients_are_told_the_kind_of_error() -> None:
    refused = LMI.error(errors.ParameterError("bad"), model(tgi_compat=True), inputs=inputs({"inputs": "x"}))
    assert json.loads(refused.body) == {**ERROR_OBJECT, "error": "bad", "code": 424, "error_type": "validation"}


@pytest.mark.parametrize(
    "error", [errors.GenerationError("gone"), errors.WorkerDiedError("gone"), errors.PredictTimeoutError("gone")]
)
def test_a_generation_that_fails(error: errors.ServingError) -> None:
    for given in (None, inputs({"inputs": "x"})):
        answered = LMI.error(error, model(), inputs=given)
        assert answered.status == 424
        assert json.loads(answered.body) == {**ERROR_OBJECT, "error": "gone", "code": 424}
    streamed = LMI.error(error, model(), inputs=inputs({"inputs": "x", "stream": True}))
    assert json.loads(streamed.body) == {**ERROR_LINE, "error": "gone", "code": 424}


def test_an_error_ends_a_stream() -> None:
    error = errors.GenerationError("out of luck")
    line = {**ERROR_LINE, "error": "out of luck", "code": 424}
    assert jsonlines(parse({"inputs": "x", "stream": True}).formatter.error(error)) == [line]
    assert jsonlines(LMI.stream_error(error, {"content-type": "application/jsonlines"})) == [line]
    assert events(LMI.stream_error(error, {"content-type": "text/event-stream; charset=utf-8"})) == [line]
    tgi_line = {
        **line,
        "token": {"id": -1, "text": "", "logprob": -1, "special": True},
        "error_type": "generation",
    }
    tgi = parse({"inputs": "x", "stream": True}, tgi_compat=True).formatter
    tgi.push(delta(TOKENS[:1]))
    assert events(tgi.error(error)) == [{**tgi_line, "index": 2}]
    # Whoever ends it in the writer's place does not know how far it had come.
    assert events(LMI.stream_error(error, tgi.headers, model(tgi_compat=True))) == [{**tgi_line, "index": 0}]


@pytest.mark.parametrize(
    "error",
    [
        errors.HandlerError("no"),
        errors.GenerationError("no"),
        errors.UnavailableError("no"),
        errors.OverloadedError("no"),
        errors.ParameterError("no"),
        errors.ServingError("no"),
    ],
)
def test_errors_have_tgis_kinds(error: errors.ServingError) -> None:
    tgi = model(tgi_compat=True)
    (line,) = events(LMI.stream_error(error, {"content-type": "text/event-stream"}, tgi))
    assert line["error_type"] == json.loads(TgiDialect().error(error, tgi).body)["error_type"]


def test_a_handler_that_fails() -> None:
    answered = LMI.error(errors.HandlerError("ZeroDivisionError: division by zero"), model(), inputs=inputs({}))
    assert answered.status == 424
    assert json.loads(answered.body) == {
        "code": 424,
        "message": "invoke handler failure",
        "error": "ZeroDivisionError: division by zero",
    }


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.RouteError("no"), 404, "ResourceNotFoundException"),
        (errors.ModelNotFoundError("no"), 404, "ModelNotFoundException"),
        (errors.ModelNotNamedError("no"), 400, "BadRequestException"),
        (errors.PayloadError("no"), 400, "BadRequestException"),
        (errors.MethodError("no"), 405, "MethodNotAllowedException"),
        (errors.TooLargeError("no"), 413, "RequestEntityTooLargeException"),
        (errors.ParameterError("no", "x"), 400, "BadRequestException"),
        (errors.UnavailableError("no"), 503, "ServiceUnavailableException"),
        (errors.OverloadedError("no"), 503, "WlmCapacityException"),
        (errors.ServingError("no"), 500, "InternalServerException"),
    ],
)
def test_the_front_ends_errors_have_lmis_shape(error: errors.ServingError, status: int, kind: str) -> None:
    for served in (None, model(), model(rolling_batch="disable")):
        answered = LMI.error(error, served)
        assert (answered.status, answered.headers["content-type"]) == (status, "application/json")
        assert json.loads(answered.body) == {"code": status, "type": kind, "message": "no"}
        assert ("retry-after" in answered.headers) is (status == 503)


def test_overload_has_the_configured_status() -> None:
    answered = LMI.error(errors.OverloadedError("full"), model(throttle_error_http_code=429))
    assert (answered.status, answered.headers["retry-after"]) == (429, "1")
    assert json.loads(answered.body)["code"] == 429
    assert LMI.error(errors.UnavailableError("none"), model(throttle_error_http_code=429)).status == 503


def test_an_error_whose_request_can_not_be_read_is_no_streams() -> None:
    unreadable: list[Any] = [{"inputs": "a", "stream": "x"}, {"parameters": {"output_formatter": []}}, []]
    for body in unreadable:
        answered = LMI.error(errors.ParameterError("no", "adapters"), model(), inputs=inputs(body))
        assert json.loads(answered.body)["details"]["tokens"] is None


def test_streaming_by_itself_is_dynamic_batchings() -> None:
    chat = {"messages": [{"role": "user", "content": "a"}]}
    assert not parse({"inputs": "a"}, enable_streaming=True).formatter.stream
    assert not parse(chat, enable_streaming=True, rolling_batch="disable").formatter.stream
    assert parse({"inputs": "a"}, enable_streaming=True, rolling_batch="disable").formatter.stream


def test_routes() -> None:
    assert isinstance(dialect("lmi"), LmiDialect)
    paths = [route.path for route in all_dialects()["lmi"].routes]
    assert paths == ["/invocations", "/predictions/{model}", "/predictions/{model}/{version}", "/models/{model}/invoke"]
    assert {route.method for route in LMI.routes} == {"POST"}


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [(errors.OverloadedError("full"), 503, "overloaded"), (errors.RouteError("no"), 404, "not_found")],
)
def test_the_front_ends_errors_can_be_read_by_tgis_clients(error: errors.ServingError, status: int, kind: str) -> None:
    answered = LMI.error(error, model(tgi_compat=True))
    body = json.loads(answered.body)
    assert (answered.status, body["code"], body["message"]) == (status, status, error.message)
    assert (body["error"], body["error_type"]) == (error.message, kind)


def test_only_a_stream_of_objects_ends_with_one() -> None:
    error = errors.GenerationError("no")
    for kind in ("text/event-stream; charset=utf-8", "application/jsonlines", "application/x-ndjson"):
        assert LMI.failed_stream_end(error, {"content-type": kind})
    for kind in ("application/json", "application/octet-stream", "text/csv", "text/plain; charset=utf-8"):
        assert LMI.failed_stream_end(error, {"content-type": kind}) is None
    assert LMI.failed_stream_end(error, {}) is None
