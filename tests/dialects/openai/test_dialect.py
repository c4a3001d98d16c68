"""Chats and models in OpenAI's form: request -> required answer, as OpenAI's reference and the wire decisions say."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from djl_python.config import ModelConfig
from djl_python.core import errors
from djl_python.core.engine_info import EngineInfo
from djl_python.core.types import Delta, Finish, FinishReason, Token, TopToken
from djl_python.dialects import dialect
from djl_python.dialects.openai.dialect import OpenAIDialect
from djl_python.dialects.shared.base import Formatter, Kind
from djl_python.dialects.shared.views import ModelStatus
from tests.dialects.exchange import called, ending, events, inputs, lines, model, said, sse, token, whole
from tests.dialects.tgi.tgi_schema import check

OPENAI = OpenAIDialect()
MESSAGES = [{"role": "user", "content": "Hi."}]
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def chat(body: dict[str, Any] | None = None, **options: Any) -> Formatter:
    return OPENAI.parse(inputs("chat", {"messages": MESSAGES} | (body or {})), model(**options)).formatter


# ------------------------------------------------------------------------------------------------ answers


def test_an_answer() -> None:
    completion = whole(chat(), said("Good"), said(" day"), said("", end=ending()))
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{32}", completion.pop("id"))
    assert isinstance(completion.pop("created"), int)
    assert completion.pop("system_fingerprint").startswith("djl-serving-")
    assert completion == {
        "object": "chat.completion",
        "model": "served",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Good day", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
    }


def test_a_stream() -> None:
    formatter = chat({"stream": True})
    chunks = events(formatter, said("Good"), said(" day"), said("", end=ending(FinishReason.STOP)))
    assert len({(one.pop("id"), one.pop("created"), one.pop("system_fingerprint")) for one in chunks}) == 1
    common = {"object": "chat.completion.chunk", "model": "served"}
    assert chunks == [
        {**common, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}
        for delta, reason in [
            ({"role": "assistant", "content": "Good"}, None),
            ({"content": " day"}, None),
            ({}, "stop"),
        ]
    ]
    assert formatter.keep_alive == b":\n\n"


def test_pieces_of_a_stream_differ_in_nothing_but_their_text() -> None:
    texts = ["A", 'B"\n', "\\é\u2028", "C"]
    chunks = events(chat({"stream": True}), *map(said, texts), said("", end=ending()))
    assert [event["choices"][0]["delta"].get("content") for event in chunks] == [*texts, None]
    for event in chunks[1:4]:
        assert event | {"choices": []} == chunks[0] | {"choices": []}
        assert event["choices"][0].keys() == chunks[0]["choices"][0].keys()
        assert event["choices"][0]["delta"].keys() == {"content"}


def test_a_stream_with_usage() -> None:
    chunks = events(
        chat({"stream": True, "stream_options": {"include_usage": True}}), said("A"), said("B", end=ending())
    )
    assert [one["usage"] for one in chunks[:-1]] == [None, None]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}


def test_steps_without_a_character_are_not_streamed() -> None:
    formatter = chat({"stream": True})
    assert formatter.push(said("")) == b""
    first, _ = events(formatter, said("é"), said("", end=ending()))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "é"}


def test_an_answer_that_ends_at_once_has_its_role() -> None:
    (only,) = events(chat({"stream": True}), said("", end=ending()))
    assert only["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert whole(chat(), said("", end=ending()))["choices"][0]["message"]["content"] == ""


@pytest.mark.parametrize(
    ("reason", "expected"),
    [(FinishReason.EOS, "stop"), (FinishReason.STOP, "stop"), (FinishReason.LENGTH, "length")],
)
def test_finish_reasons(reason: FinishReason, expected: str) -> None:
    assert whole(chat(), said("A", end=ending(reason)))["choices"][0]["finish_reason"] == expected


def test_logprobs() -> None:
    spoken = token(" é", -0.25, " é", "x")
    expected = {
        "content": [
            {
                "token": " é",
                "logprob": -0.25,
                "bytes": [32, 195, 169],
                "top_logprobs": [
                    {"token": " é", "logprob": -1.0, "bytes": [32, 195, 169]},
                    {"token": "x", "logprob": -2.0, "bytes": [120]},
                ],
            }
        ],
        "refusal": None,
    }
    asked = {"logprobs": True, "top_logprobs": 2}
    completion = whole(chat(asked), said(" é", spoken, end=ending()))
    assert completion["choices"][0]["logprobs"] == expected
    (only,) = events(chat(asked | {"stream": True}), said(" é", spoken, end=ending()))
    assert only["choices"][0]["logprobs"] == expected


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_usage_in_a_stream_is_for_who_asks_for_it(options: Any) -> None:
    (only,) = events(chat({"stream": True, "stream_options": options}), said("A", end=ending()))
    assert "usage" not in only


def test_a_token_is_told_as_among_its_alternatives() -> None:
    """The bytes of a part of a character are not those of U+FFFD, and the end of a text has a name."""
    half = TopToken(7, "\ufffd", -0.25, partial=b"\xf0\x9f")
    end = TopToken(2, "<end>", -0.5, special=True)
    spoken = [Token(one.id, "", one.logprob, one.special, (one,), one.text, one.partial) for one in (half, end)]
    completion = whole(chat({"logprobs": True, "top_logprobs": 1}), said("", *spoken, end=ending()))
    told = completion["choices"][0]["logprobs"]["content"]
    assert [one.pop("top_logprobs") for one in told] == [[one] for one in told]
    assert told == [
        {"token": "\ufffd", "logprob": -0.25, "bytes": [0xF0, 0x9F]},
        {"token": "<end>", "logprob": -0.5, "bytes": [*b"<end>"]},
    ]


def test_no_logprob_goes_missing_in_a_stream() -> None:
    chunks = events(chat({"logprobs": True, "stream": True}), said(""), said("é"), said("", end=ending()))
    assert [len(one["choices"][0]["logprobs"]["content"]) for one in chunks] == [1, 1, 1]
    assert [one["choices"][0]["delta"]["content"] for one in chunks] == ["", "é", ""]


def test_several_answers() -> None:
    deltas = [
        said("A", choice=1),
        said("B", choice=0),
        said("", choice=1, end=ending()),
        said("C", choice=0, end=ending(FinishReason.LENGTH)),
    ]
    completion = whole(chat({"n": 2}), *deltas)
    assert [(one["index"], one["message"]["content"], one["finish_reason"]) for one in completion["choices"]] == [
        (0, "BC", "length"),
        (1, "A", "stop"),
    ]
    assert completion["usage"] == {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}
    streamed = [one["choices"][0] for one in events(chat({"n": 2, "stream": True}), *deltas)]
    assert [one["index"] for one in streamed] == [1, 0, 1, 0]
    assert [one["delta"].get("role") for one in streamed] == ["assistant", "assistant", None, None]


# ------------------------------------------------------------------------------------------------ reasoning

REASONED = ending(reasoning_tokens=2)


def thought(text: str, end: Finish | None = None) -> Delta:
    """A step that gave a piece of reasoning."""
    return Delta(tokens=(token(text),), reasoning=text, finish=end)


def test_reasoning_is_beside_the_content() -> None:
    completion = whole(chat(), thought("Hm,"), thought(" well"), said("Yes"), said("", end=REASONED))
    assert completion["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Yes",
        "reasoning_content": "Hm, well",
        "reasoning": "Hm, well",
        "refusal": None,
    }
    assert completion["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}


def test_an_answer_without_content_or_without_reasoning() -> None:
    (only,) = whole(chat(), thought("Hm"), thought("", end=REASONED))["choices"]
    assert (only["message"]["content"], only["message"]["reasoning"]) == (None, "Hm")
    (only,) = whole(chat(), said("Yes", end=ending(reasoning_tokens=0)))["choices"]
    assert (only["message"]["content"], only["message"]["reasoning"]) == ("Yes", None)


@pytest.mark.parametrize("tgi_compat", [False, True])
def test_reasoning_is_streamed_in_deltas_of_its_own(tgi_compat: bool) -> None:
    deltas = [thought("Hm"), thought(" ,"), said("Yes"), said("."), said("", end=REASONED)]
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    formatter = chat(asked, tgi_compat=tgi_compat)
    formatter.prepared([[1]], splits_reasoning=True)
    *chunks, last = events(formatter, *deltas)
    role = {"role": "assistant"}
    always = role if tgi_compat else {}
    none = {"reasoning_content": None, "reasoning": None}
    assert [one["choices"][0]["delta"] for one in chunks] == [
        {**role, "reasoning_content": "Hm", "reasoning": "Hm"},
        {**always, "reasoning_content": " ,", "reasoning": " ,"},
        {**always, **none, "content": "Yes"},
        {**always, **none, "content": "."},
        {**role, **none, "content": ""} if tgi_compat else none,
    ]
    assert last["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}


# ------------------------------------------------------------------------------------------------ tools

CALLS = [
    called(0, "call_1", "weather", ""),
    called(0, arguments='{"city": '),
    called(0, arguments='"Rome"}'),
    called(1, "call_2", "weather", "{}", end=ending()),
]


def test_tool_calls() -> None:
    choice = whole(chat({"tools": [WEATHER]}), *CALLS)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
            },
            {"id": "call_2", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
        ],
    }


def test_streamed_tool_calls() -> None:
    choices = [one["choices"][0] for one in events(chat({"tools": [WEATHER], "stream": True}), said("So:"), *CALLS)]
    assert [one["delta"] for one in choices] == [
        {"role": "assistant", "content": "So:"},
        {
            "tool_calls": [
                {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Rome"}'}}]},
        {
            "tool_calls": [
                {"index": 1, "id": "call_2", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
            ]
        },
    ]
    assert [one["finish_reason"] for one in choices] == [None, None, None, None, "tool_calls"]


def test_calls_have_no_content_beside_logprobs_either() -> None:
    body = {"tools": [WEATHER], "stream": True, "logprobs": True}
    for one in events(chat(body), *CALLS):
        assert "content" not in one["choices"][0]["delta"]
        assert len(one["choices"][0]["logprobs"]["content"]) == 1


@pytest.mark.parametrize(
    ("reason", "expected"),
    [(FinishReason.LENGTH, "length"), (FinishReason.STOP, "stop"), (FinishReason.EOS, "tool_calls")],
)
@pytest.mark.parametrize("arguments", ['{"ci', '{"x": ' + "[" * 100_000])
def test_a_call_that_was_cut_off_says_so(reason: FinishReason, expected: str, arguments: str) -> None:
    cut = called(1, "call_2", "weather", arguments, end=ending(reason))
    choice = whole(chat({"tools": [WEATHER]}), called(0, "call_1", "weather", "{}"), cut)["choices"][0]
    assert choice["finish_reason"] == expected
    assert choice["message"]["tool_calls"][1]["function"]["arguments"] == arguments
    (*_, last) = events(chat({"tools": [WEATHER], "stream": True}), cut)
    assert last["choices"][0]["finish_reason"] == expected


def test_a_stop_sequence_after_a_call_has_not_cut_it() -> None:
    pieces = [
        called(0, "call_1", "weather", '{"ci'),
        called(0, arguments='ty": 1}'),
        said("", end=ending(FinishReason.STOP)),
    ]
    assert whole(chat({"tools": [WEATHER]}), *pieces)["choices"][0]["finish_reason"] == "tool_calls"
    stopped = said("So", end=ending(FinishReason.STOP))
    assert whole(chat({"tools": [WEATHER]}), stopped)["choices"][0]["finish_reason"] == "stop"


# ------------------------------------------------------------------------------------------------ option values


def test_tgi_compat() -> None:
    chunks = events(chat({"stream": True}, tgi_compat=True), said("A"), said("B"), said("", end=ending()))
    assert [one["choices"][0]["delta"] for one in chunks] == [
        {"role": "assistant", "content": "A"},
        {"role": "assistant", "content": "B"},
        {"role": "assistant", "content": ""},
    ]
    assert [one["choices"][0]["finish_reason"] for one in chunks] == [None, None, "stop"]
    assert whole(chat(tgi_compat=True), said("A", end=ending()))["choices"][0]["message"] == {
        "role": "assistant",
        "content": "A",
    }
    streamed = events(chat({"tools": [WEATHER], "stream": True}, tgi_compat=True), *CALLS)
    assert all(set(one["choices"][0]["delta"]) == {"role", "tool_calls"} for one in streamed)
    apart = (*CALLS[:-1], msgspec.structs.replace(CALLS[-1], finish=None), said("", end=ending()))
    last = events(chat({"tools": [WEATHER], "stream": True}, tgi_compat=True), *apart)[-1]["choices"][0]
    assert last["finish_reason"] == "tool_calls"
    assert last["delta"] == {"role": "assistant", "tool_calls": [{"index": 1, "function": {"arguments": ""}}]}


def test_jsonlines_chat_frames_chats_here_too() -> None:
    formatter = chat({"stream": True}, output_formatter="jsonlines_chat")
    assert formatter.headers["content-type"] == "application/jsonlines"
    assert formatter.keep_alive == b""
    chunks = lines(formatter.push(said("A")) + formatter.push(said("B", end=ending())) + formatter.end())
    assert [one["choices"][0]["delta"]["content"] for one in chunks] == ["A", "B"]
    assert not chat({}, output_formatter="jsonlines_chat").stream
    assert chat({"stream": True}, output_formatter="jsonlines").headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(
    ("tgi", "expected"), [(False, "text/event-stream; charset=utf-8"), (True, "text/event-stream")]
)
def test_events_say_their_charset_where_openai_s_do(tgi: bool, expected: str) -> None:
    for operation, body in (("chat", {"messages": MESSAGES}), ("completion", {"prompt": "Hi."})):
        made = OPENAI.parse(inputs(operation, body | {"stream": True}), model(tgi_compat=tgi)).formatter
        assert made.headers["content-type"] == expected


def test_parameters_without_effect_are_reported_as_ignored() -> None:
    formatter = chat({"temperature": 0, "seed": 7, "zzz": 1, "user": "me", "store": True, "metadata": {"a": "b"}})
    assert formatter.headers["x-ignored-parameters"] == "seed,zzz"
    assert "x-ignored-parameters" not in chat({"user": "me", "model": "any"}).headers


# ------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("error", "status", "kind", "param", "code"),
    [
        (errors.ParameterError("n: no", "n"), 400, "invalid_request_error", "n", None),
        (errors.PayloadError("no"), 400, "invalid_request_error", None, None),
        (errors.MediaTypeError("no"), 415, "invalid_request_error", None, None),
        (errors.ContextLengthError(9, None, 8), 400, "invalid_request_error", "messages", "context_length_exceeded"),
        (errors.ModelNotFoundError("no"), 404, "invalid_request_error", "model", "model_not_found"),
        (errors.ModelNotNamedError("no"), 400, "invalid_request_error", "model", None),
        (errors.RouteError("no"), 404, "invalid_request_error", None, None),
        (errors.MethodError("no"), 405, "invalid_request_error", None, None),
        (errors.TooLargeError("no"), 413, "invalid_request_error", None, None),
        (errors.OverloadedError("no"), 429, "requests", None, "rate_limit_exceeded"),
        (errors.UnavailableError("no"), 503, "server_error", None, "service_unavailable"),
        (errors.GenerationError("no"), 500, "server_error", None, "generation"),
        (errors.WorkerDiedError("no"), 500, "server_error", None, "worker_died"),
        (errors.HandlerError("no"), 500, "server_error", None, "handler"),
        (errors.ServingError("no"), 500, "server_error", None, "internal"),
    ],
)
def test_errors(error: errors.ServingError, status: int, kind: str, param: str | None, code: str | None) -> None:
    answer = OPENAI.error(error, model())
    body = json.loads(answer.body)["error"]
    assert (answer.status, body.pop("type"), body.pop("param"), body.pop("code")) == (status, kind, param, code)
    assert list(body) == ["message"]
    assert ("retry-after" in answer.headers) is (status in (429, 503))


def test_a_prompt_that_is_too_long_is_told_in_openais_words() -> None:
    error = errors.ContextLengthError(9, 5, 8)
    chat_error = json.loads(OPENAI.error(error, operation="chat").body)["error"]
    assert chat_error["message"] == (
        "This model's maximum context length is 8 tokens. However, you requested 14 tokens (9 tokens in the messages, "
        "5 in the completion). Please reduce the length of the messages or completion."
    )
    alone = json.loads(OPENAI.error(errors.ContextLengthError(8, None, 8), operation="completion").body)["error"]
    assert alone["message"].endswith(
        "you requested 9 tokens (8 tokens in the prompt, at least 1 in the completion). "
        "Please reduce the length of the prompt."
    )
    tgi = json.loads(OPENAI.error(error, model(tgi_compat=True), operation="completion").body)
    assert tgi["error"].startswith("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8. Given: 9")
    least = errors.ContextLengthError(70, None, 8, at_least=True)
    counted = json.loads(OPENAI.error(least, operation="chat").body)["error"]
    assert "requested at least 71 tokens (at least 70 tokens in the messages, at least 1 in" in counted["message"]
    completion_error = json.loads(OPENAI.error(error, operation="completion").body)["error"]
    assert completion_error["param"] == "prompt"
    ours = errors.PayloadError("inputs: the tokenizer makes no tokens of this text", "inputs")
    body = json.loads(OPENAI.error(ours, operation="completion").body)["error"]
    assert (body["message"], body["param"]) == ("prompt: the tokenizer makes no tokens of this text", "prompt")


def test_prompts_under_tgi_compat_are_limited_in_number() -> None:
    body = {"prompt": ["a", "b", "c"]}
    assert OPENAI.parse(inputs("completion", body), model(max_client_batch_size=2)).requests
    given = inputs("completion", body)
    with pytest.raises(errors.ParameterError) as caught:
        OPENAI.parse(given, model(max_client_batch_size=2, tgi_compat=True))
    answer = OPENAI.error(caught.value, model(tgi_compat=True), operation="completion", inputs=given)
    message = "Input validation error: Number of prompts exceeds the maximum allowed batch size of 2"
    assert (answer.status, json.loads(answer.body)) == (422, {"error": message, "error_type": "validation"})


def test_errors_under_tgi_compat() -> None:
    answer = OPENAI.error(errors.ParameterError("n: no", "n"), model(tgi_compat=True))
    assert answer.status == 422
    assert json.loads(answer.body) == {"error": "Input validation error: n: no", "error_type": "validation"}


def test_an_error_ends_a_stream() -> None:
    error = errors.GenerationError("out of luck")
    body = {"error": {"message": "out of luck", "type": "server_error", "param": None, "code": "generation"}}
    assert sse(chat({"stream": True}).error(error)) == [body]
    assert sse(OPENAI.stream_error(error, {"content-type": "text/event-stream"})) == [body]
    assert lines(OPENAI.stream_error(error, {"content-type": "application/jsonlines"})) == [body]
    (tgi,) = sse(chat({"stream": True}, tgi_compat=True).error(error))
    assert tgi == {"error": {"message": "Request failed during generation: out of luck", "http_status_code": 424}}
    assert sse(OPENAI.stream_error(error, {"content-type": "text/event-stream"}, model(tgi_compat=True))) == [tgi]


# ------------------------------------------------------------------------------------------------ TGI's document


def check_objects(answer: dict[str, Any], kind: str, component: str) -> None:
    """Hold an answer against TGI's document, which has `object` beside its components and no `bytes`."""
    assert answer.pop("object") == kind
    for choice in answer["choices"]:
        for token_logprob in (choice.get("logprobs") or {}).get("content", ()):
            for each in (token_logprob, *token_logprob["top_logprobs"]):
                assert bytes(each.pop("bytes")).decode() == each["token"]
    check(answer, component)


def test_chats_are_those_of_tgis_document() -> None:
    options: dict[str, Any] = {"logprobs": True, "top_logprobs": 1, "stream_options": None}
    deltas = said("A", token("A", -0.5, "B")), said("B", token("B", -0.5, "C"), end=ending())
    check_objects(whole(chat(options, tgi_compat=True), *deltas), "chat.completion", "ChatCompletion")
    for one in events(chat(options | {"stream": True}, tgi_compat=True), *deltas):
        check_objects(one, "chat.completion.chunk", "ChatCompletionChunk")


def test_completions_are_those_of_tgis_document() -> None:
    for stream in (False, True):
        body = {"prompt": "a", "stream": stream}
        formatter = OPENAI.parse(inputs("completion", body), model(tgi_compat=True)).formatter
        deltas = said("A"), said("B", end=ending())
        for one in events(formatter, *deltas) if stream else [whole(formatter, *deltas)]:
            for each in one["choices"]:
                each.pop("logprobs")  # always null, and OpenAI's
            check_objects(one, "text_completion", "CompletionFinal" if "usage" in one else "Chunk")


# ------------------------------------------------------------------------------------------------ models


@dataclass
class View:
    """The front end, as far as the pages look."""

    models: Sequence[ModelStatus]


def status(name: str, registered_s: float, version: str = "") -> ModelStatus:
    config = ModelConfig(name=name, version=version)
    return ModelStatus(config, True, False, 1, registered_s, 0, 0)


VIEW: Any = View([status("a", 11.5), status("b", 12.0, "1"), status("b", 13.0, "2")])


def test_models() -> None:
    answer = OPENAI.page("models", VIEW, {}, b"")
    assert answer.status == 200
    assert json.loads(answer.body) == {
        "object": "list",
        "data": [
            {"id": "a", "object": "model", "created": 11, "owned_by": "djl-serving", "root": "a"},
            {"id": "b", "object": "model", "created": 12, "owned_by": "djl-serving", "root": "b"},
        ],
    }


def test_an_adapter_is_a_model_too() -> None:
    of_a = status("a", 11.5)
    view: Any = View([replace(of_a, config=msgspec.structs.replace(of_a.config, adapters={"tom": "/tom", "a": "/a"}))])
    assert [one["id"] for one in json.loads(OPENAI.page("models", view, {}, b"").body)["data"]] == ["a", "tom"]
    assert json.loads(OPENAI.page("model", view, {"model": "tom"}, b"").body) == {
        "id": "tom",
        "object": "model",
        "created": 11,
        "owned_by": "djl-serving",
        "root": "a",
        "parent": "a",
    }


@pytest.mark.parametrize(("name", "adapter"), [("tom", "tom"), ("served", ""), ("else", ""), (None, "")])
def test_a_requests_model_may_name_an_adapter(name: str | None, adapter: str) -> None:
    adapted = msgspec.structs.replace(model(), adapters={"tom": "/tom", "served": "/served"})
    for operation, body in (("chat", {"messages": MESSAGES}), ("completion", {"prompt": "Hi."})):
        parsed = OPENAI.parse(inputs(operation, {**body, "model": name}), adapted)
        assert [request.adapter for request in parsed.requests] == [adapter]


def test_a_models_page_shows_its_engine() -> None:
    engine = EngineInfo(runner="torch-paged", refusal="an unknown activation in the MLP", max_model_len=9)
    view: Any = View([replace(status("a", 11.5), engine=engine)])
    shown = json.loads(OPENAI.page("model", view, {"model": "a"}, b"").body)
    assert msgspec.convert(shown["engine"], EngineInfo) == engine
    assert shown["max_model_len"] == 9


@pytest.mark.parametrize(
    ("source", "root"), [("org/name", "org/name"), ("/opt/secret", "a"), ("s3://bucket/secret", "a"), ("", "a")]
)
def test_a_models_root_is_a_checkpoint_of_the_hub_and_no_path(source: str, root: str) -> None:
    of_a = status("a", 11.5)
    option = msgspec.structs.replace(of_a.config.option, model_id=source)
    view: Any = View([replace(of_a, config=msgspec.structs.replace(of_a.config, option=option))])
    assert json.loads(OPENAI.page("model", view, {"model": "a"}, b"").body)["root"] == root


def test_a_model() -> None:
    assert json.loads(OPENAI.page("model", VIEW, {"model": "a"}, b"").body) == {
        "id": "a",
        "object": "model",
        "created": 11,
        "owned_by": "djl-serving",
        "root": "a",
    }
    slashed: Any = replace(VIEW, models=[status("org/name", 1)])
    assert json.loads(OPENAI.page("model", slashed, {"owner": "org", "model": "name"}, b"").body)["id"] == "org/name"
    with pytest.raises(errors.ModelNotFoundError, match="The model `x/y` does not exist; loaded: a, b"):
        OPENAI.page("model", VIEW, {"owner": "x", "model": "y"}, b"")
    nothing: Any = View([])
    with pytest.raises(errors.ModelNotFoundError, match=r"does not exist; loaded: none$"):
        OPENAI.page("model", nothing, {"model": "a"}, b"")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"messages": [{"a": 1}], "model": "m", "n": 1}', "m"),
        (b'{"messages": []}', None),
        (b'{"model": ""}', None),
        (b'{"model": null}', None),
    ],
)
def test_the_model_that_a_body_names(body: bytes, expected: str | None) -> None:
    assert OPENAI.model_of(body) == expected


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"model": 5}', "model: expected a string, got 5"),
        (b"[1]", "the request body: expected a JSON object, got [1]"),
        (b"{", "the request body is not valid JSON: "),
        (b"", "the request body is empty, expected JSON"),
        (b'\xef\xbb\xbf{"model": "m"}', "the request body is not valid JSON: "),
        (b'{"model": "\xff"}', "the request body is not valid JSON: "),
        (b'{"x":' + b"[" * 100_000, "the request body is not valid JSON: "),
    ],
)
def test_a_body_that_names_none_because_it_can_not_be_read(body: bytes, message: str) -> None:
    """In the words that it is refused with where one model is loaded."""
    with pytest.raises(errors.ServingError) as caught:
        OPENAI.model_of(body)
    assert (caught.value.message[: len(message)], caught.value.status) == (message, 400)
    with pytest.raises(errors.ServingError) as alone:
        OPENAI.parse(inputs("chat", body), model())
    assert alone.value.message == caught.value.message


def test_a_long_body_is_refused_without_making_objects_of_it() -> None:
    """Where several models are loaded, the front end reads whose it is, and everything else waits meanwhile."""
    body = b'{"prompt": [%b{}], "model": 1}' % (b'{"a": 1}, ' * 200_000)
    with pytest.raises(
        errors.PayloadError, match=r"the request body: Expected `str \| null`, got `int` - at `\$\.model`"
    ):
        OPENAI.model_of(body)


def test_fields_are_called_what_the_request_calls_them() -> None:
    empty = errors.PayloadError("inputs: the tokenizer makes no tokens of this text", "inputs")
    answer = OPENAI.error(empty, model(tgi_compat=True), operation="completion")
    assert json.loads(answer.body) == {
        "error": "Input validation error: prompt: the tokenizer makes no tokens of this text",
        "error_type": "validation",
    }
    unnamed = OPENAI.error(errors.ModelNotNamedError("Parameter model_name is required: loaded: a, b"))
    assert json.loads(unnamed.body)["error"]["message"] == "model is required: loaded: a, b"


def test_routes() -> None:
    assert isinstance(dialect("openai"), OpenAIDialect)
    assert [(route.method, route.path, route.kind) for route in OPENAI.routes] == [
        ("POST", "/v1/chat/completions", Kind.GENERATE),
        ("POST", "/v1/completions", Kind.GENERATE),
        ("GET", "/v1/models", Kind.PAGE),
        ("GET", "/v1/models/{model}", Kind.PAGE),
        ("GET", "/v1/models/{owner}/{model}", Kind.PAGE),
        ("GET", "/version", Kind.PAGE),
        ("POST", "/detokenize", Kind.QUERY),
        ("POST", "/v1/embeddings", Kind.GENERATE),
        ("POST", "/v1/score", Kind.GENERATE),
        ("POST", "/score", Kind.GENERATE),
        ("POST", "/v1/rerank", Kind.GENERATE),
        ("POST", "/v2/rerank", Kind.GENERATE),
        ("POST", "/rerank", Kind.GENERATE),
        ("POST", "/pooling", Kind.GENERATE),
        ("POST", "/classify", Kind.GENERATE),
        ("POST", "/v1/files", Kind.KEPT),
        ("GET", "/v1/files", Kind.KEPT),
        ("GET", "/v1/files/{file_id}", Kind.KEPT),
        ("DELETE", "/v1/files/{file_id}", Kind.KEPT),
        ("GET", "/v1/files/{file_id}/content", Kind.KEPT),
        ("POST", "/v1/batches", Kind.KEPT),
        ("GET", "/v1/batches", Kind.KEPT),
        ("GET", "/v1/batches/{batch_id}", Kind.KEPT),
        ("POST", "/v1/batches/{batch_id}/cancel", Kind.KEPT),
    ]


@pytest.mark.parametrize("continuous", [True, False])
def test_a_stream_may_count_as_it_goes(continuous: bool) -> None:
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": continuous}}
    bodies = (("chat", {"messages": MESSAGES}), ("completion", {"prompt": "Hi."}))
    for operation, body in bodies:
        formatter = OPENAI.parse(inputs(operation, {**body, "stream": True, **options}), model()).formatter
        formatter.prepared([[1, 2, 3]], splits_reasoning=False)
        deltas = (said("a"), said("bc", token("b"), token("c")), said("d"), said("", end=ending(generated_tokens=5)))
        *pieces, last = events(formatter, *deltas)
        counts = [piece["usage"] and piece["usage"]["completion_tokens"] for piece in pieces]
        assert counts == ([1, 3, 4, 5] if continuous else [None] * 4)
        if continuous:
            assert {piece["usage"]["prompt_tokens"] for piece in pieces} == {3}
            assert pieces[-1]["usage"]["total_tokens"] == 8
        assert last["usage"]["completion_tokens"] == 5 and last["choices"] == []
