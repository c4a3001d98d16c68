"""Chats on LMI's routes: request -> required answer, as LMI's chat schema and the wire decisions say."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from djl_python.core import errors
from djl_python.core.types import Chat, FinishReason
from djl_python.dialects.lmi.dialect import LmiDialect
from djl_python.dialects.shared.base import Formatter, Parsed
from tests.dialects.exchange import answer, called, ending, events, inputs, lines, model, said, sse, token, whole

LMI = LmiDialect()
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}]


def parse(body: dict[str, Any] | None = None, **options: Any) -> Parsed:
    return LMI.parse(inputs("predict", {"messages": MESSAGES} | (body or {}), "lmi"), model(**options))


def chat(body: dict[str, Any] | None = None, **options: Any) -> Formatter:
    return parse(body, **options).formatter


def test_a_request() -> None:
    """Every field of the schema's table."""
    (request,) = parse(
        {
            "model": "gpt2",
            "frequency_penalty": 0.5,
            "logit_bias": {"2435": -100.0, "640": -100.0},
            "logprobs": True,
            "top_logprobs": 1,
            "max_tokens": 256,
            "n": 1,
            "presence_penalty": 0.25,
            "seed": 7,
            "stop": ["test"],
            "stream": False,
            "temperature": 0.5,
            "top_p": 0.9,
            "user": "test",
            "ignore_eos": True,
        }
    ).requests
    assert request.prompt == Chat(messages=tuple(MESSAGES))
    sampling = request.sampling
    assert (sampling.frequency_penalty, sampling.presence_penalty, sampling.seed) == (0.5, 0.25, 7)
    assert sampling.logit_bias == {2435: -100.0, 640: -100.0}
    assert (sampling.max_new_tokens, sampling.top_logprobs, sampling.ignore_eos) == (256, 1, True)
    assert (sampling.temperature, sampling.top_p, request.text.stop_sequences) == (0.5, 0.9, ("test",))
    assert (request.ignored, request.must_fit) == ((), False)


def test_an_answer() -> None:
    completion = whole(chat(), said("Good"), said(" day", end=ending(FinishReason.LENGTH)))
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{32}", completion.pop("id"))
    assert isinstance(completion.pop("created"), int)
    assert completion == {
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Good day"},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
    }


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (FinishReason.EOS, "eos_token"),
        (FinishReason.STOP, "stop_sequence"),
        (FinishReason.LENGTH, "length"),
    ],
)
def test_finish_reasons(reason: FinishReason, expected: str) -> None:
    assert whole(chat(), said("A", end=ending(reason)))["choices"][0]["finish_reason"] == expected


def test_a_stream_is_jsonlines() -> None:
    formatter = chat({"stream": True, "logprobs": True, "top_logprobs": 1})
    assert formatter.headers["content-type"] == "application/jsonlines"
    chunks = lines(
        answer(formatter, said(" Oh", token(" Oh", -4.5, " Oh")), said(" hi", token(" hi", -1.0), end=ending()))
    )
    assert len({(one.pop("id"), one.pop("created")) for one in chunks}) == 1
    oh = {"token": " Oh", "logprob": -4.5, "bytes": [32, 79, 104]}
    assert chunks[0] == {
        "object": "chat.completion.chunk",
        "choices": [
            {
                "index": 0,
                "delta": {"content": " Oh", "role": "assistant"},
                "logprobs": {"content": [{**oh, "top_logprobs": [{**oh, "logprob": -1.0}]}]},
                "finish_reason": None,
            }
        ],
    }
    (last,) = chunks[1]["choices"]
    assert (last["delta"], last["finish_reason"]) == ({"content": " hi"}, "eos_token")
    assert len(chunks) == 2


def test_a_stream_tells_its_usage_when_asked() -> None:
    formatter = chat({"stream": True, "stream_options": {"include_usage": True}})
    chunks = lines(answer(formatter, said("A", end=ending())))
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["total_tokens"]) == ([], 8)


def test_tool_calls() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    choice = whole(chat({"tools": tools}), called(0, "c", "f", "{}", end=ending()))["choices"][0]
    assert choice["finish_reason"] == "eos_token"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }


@pytest.mark.parametrize(
    ("option", "stream", "tgi", "expected"),
    [
        (None, None, False, "application/json"),
        (None, True, False, "application/jsonlines"),
        (None, True, True, "application/jsonlines"),
        ("json_chat", None, False, "application/json"),
        ("json_chat", True, False, "application/jsonlines"),
        ("jsonlines_chat", None, False, "application/json"),
        ("jsonlines_chat", False, False, "application/json"),
        ("sse_chat", None, False, "application/json"),
        ("sse_chat", True, False, "text/event-stream"),
        ("sse_chat", False, False, "application/json"),
        ("sse", True, False, "text/event-stream"),
        ("sse", None, True, "application/json"),
        ("jsonlines", None, False, "application/json"),
        ("jsonlines", True, False, "application/jsonlines"),
    ],
)
def test_framing(option: str | None, stream: bool | None, tgi: bool, expected: str) -> None:
    """The option says how a chat is streamed, never that it is."""
    formatter = chat({"stream": stream}, output_formatter=option, tgi_compat=tgi)
    assert formatter.headers["content-type"] == expected
    assert formatter.stream is (expected != "application/json")


def test_chat_formatters_frame_other_requests_too() -> None:
    parsed = LMI.parse(inputs("predict", {"inputs": "x"}, "lmi"), model(output_formatter="jsonlines_chat"))
    assert parsed.formatter.headers["content-type"] == "application/jsonlines"


def test_sse_ends_with_done() -> None:
    (chunk,) = events(chat({"stream": True}, output_formatter="sse_chat"), said("A", end=ending()))
    assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": "A"}


def test_tgi_compat_has_the_role_in_every_delta() -> None:
    chunks = lines(answer(chat({"stream": True}, tgi_compat=True), said("A"), said("B", end=ending())))
    assert [one["choices"][0]["delta"] for one in chunks] == [
        {"role": "assistant", "content": "A"},
        {"role": "assistant", "content": "B"},
    ]


# ------------------------------------------------------------------------------------------------ errors

LINE = {
    "token": {"id": -1, "text": "", "log_prob": -1, "special_token": True},
    "generated_text": "",
    "details": {"finish_reason": "error", "generated_tokens": None, "inputs": None},
}


@pytest.mark.parametrize(
    ("body", "beside"),
    [
        ({"messages": []}, {}),
        ({"messages": [{"role": "user"}]}, {}),
        ({"temperature": 9}, {"generated_text": "", "details": {**LINE["details"], "tokens": None}}),  # type: ignore[dict-item]
        ({"temperature": 9, "stream": True}, LINE),
    ],
)
def test_refused(body: dict[str, Any], beside: dict[str, Any]) -> None:
    given = inputs("predict", {"messages": MESSAGES} | body, "lmi")
    with pytest.raises(errors.ServingError) as caught:
        LMI.parse(given, model())
    response = LMI.error(caught.value, model(), inputs=given)
    assert response.status == 424
    assert json.loads(response.body) == {**beside, "error": caught.value.message, "code": 424}


def test_an_error_ends_a_stream() -> None:
    error = errors.GenerationError("out of luck")
    (chunk,) = lines(chat({"stream": True}).error(error))
    assert (chunk["error"], chunk["code"]) == ("out of luck", 424)
    assert chunk["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "error"}]
    assert sse(chat({"stream": True}, output_formatter="sse_chat").error(error))[0]["error"] == "out of luck"
    (tgi,) = lines(chat({"stream": True}, tgi_compat=True).error(error))
    assert tgi["error_type"] == "generation"


@pytest.mark.parametrize("output_formatter", ["jsonlines_chat", "sse_chat"])
@pytest.mark.parametrize("tgi_compat", [True, False])
def test_a_stream_whose_writer_is_gone_ends_in_the_same_way(output_formatter: str, tgi_compat: bool) -> None:
    """The front end ends it, which knows of the stream only its headers."""
    error = errors.WorkerDiedError("the worker has ended")
    served = model(output_formatter=output_formatter, tgi_compat=tgi_compat)
    formatter = chat({"stream": True}, output_formatter=output_formatter, tgi_compat=tgi_compat)
    read = sse if output_formatter == "sse_chat" else lines
    (expected,) = read(formatter.error(error))
    (chunk,) = read(LMI.stream_error(error, formatter.headers, served))
    assert chunk.pop("created") - expected.pop("created") <= 1
    assert chunk == expected
    assert "x-completion-id" not in chat({}).headers
