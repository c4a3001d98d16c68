"""/v1/embeddings: request -> required answer, as OpenAI's reference and vLLM's protocol say."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from djl_python.core.budgets import TEXTS
from djl_python.core.errors import ServingError, TextLengthError
from djl_python.core.text_tasks import TextInput
from djl_python.dialects.openai.dialect import OpenAIDialect
from tests.dialects.exchange import inputs, model, task_answer
from tests.text_tasks import LIMIT, result, vector

OPENAI = OpenAIDialect()
TASK = "feature-extraction"


def ask(body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = task_answer(OPENAI, TASK, "embeddings", body)
    return answer


def parsed(body: Any) -> Any:
    return OPENAI.parse_task(TASK, inputs("embeddings", body), model())


def refusal(body: Any) -> tuple[int, dict[str, Any]]:
    call = inputs("embeddings", body)
    with pytest.raises(ServingError) as raised:
        for request in OPENAI.parse_task(TASK, call, model()).requests:
            result(request)
    answer = OPENAI.error(raised.value, model(), operation="embeddings", inputs=call)
    return answer.status, json.loads(answer.body)["error"]


def test_a_text() -> None:
    answer = ask({"input": "to be or not", "model": "any", "user": "me"})
    (one,) = answer.pop("data")
    assert one.pop("embedding") == pytest.approx(vector(TextInput(text="to be or not")), abs=1e-6)
    assert one == {"object": "embedding", "index": 0}
    assert answer == {"object": "list", "model": "served", "usage": {"prompt_tokens": 6, "total_tokens": 6}}


def test_texts_are_answered_in_their_order() -> None:
    answer = ask({"input": ["a b", "c"]})
    assert [one["index"] for one in answer["data"]] == [0, 1]
    assert answer["data"][1]["embedding"] == ask({"input": "c"})["data"][0]["embedding"]
    assert answer["usage"]["total_tokens"] == 7


@pytest.mark.parametrize(("given", "ids"), [([5, 6, 7], [(5, 6, 7)]), ([[5, 6], [7]], [(5, 6), (7,)])])
def test_token_ids(given: Any, ids: list[tuple[int, ...]]) -> None:
    assert [request.text.ids for request in parsed({"input": given}).requests] == ids


def test_base64_is_the_same_values() -> None:
    data = base64.b64decode(ask({"input": "abc", "encoding_format": "base64"})["data"][0]["embedding"])
    values = ask({"input": "abc"})["data"][0]["embedding"]
    assert list(struct.unpack(f"<{len(values)}f", data)) == values


def test_dimensions() -> None:
    assert len(ask({"input": "abc", "dimensions": 2})["data"][0]["embedding"]) == 2


def test_vllms_fields() -> None:
    long = " ".join("word" for _ in range(LIMIT))
    assert ask({"input": long, "truncate_prompt_tokens": 3})["usage"]["prompt_tokens"] == 3
    (request,) = parsed(
        {"input": long, "truncate_prompt_tokens": -1, "truncation_side": "left", "add_special_tokens": False}
    ).requests
    assert (request.text.truncate, request.text.max_tokens, request.text.add_special_tokens) == ("left", None, False)


def test_parameters_without_effect_are_reported_as_ignored() -> None:
    call = parsed({"input": "a", "priority": 3, "cache_salt": "x"})
    assert call.formatter.headers["x-ignored-parameters"] == "cache_salt"
    assert call.priority == 3


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a", None]}, "input[1]"),
        ({"input": ["a", 5]}, "input[1]"),
        ({"input": [[1], [-1]]}, "input[1][0]"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "priority": 1 << 40}, "priority"),
        ({"input": "a", "encoding_format": "ubinary"}, "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"messages": [{"role": "user", "content": "a"}]}, "messages"),
        ({"input": ["a"] * (TEXTS.most + 1)}, "input"),
    ],
)
def test_refusals_name_the_field(body: Any, param: str) -> None:
    status, error = refusal(body)
    assert (status, error["type"], error["param"], error["code"]) == (400, "invalid_request_error", param, None)
    assert error["message"].startswith(f"{param}: ")


def test_too_many_texts_are_counted() -> None:
    assert refusal({"input": ["a"] * 3000})[1]["message"] == "input: expected at most 2048 texts, got 3000"
    assert len(parsed({"input": list(range(3000))}).requests) == 1  # the tokens of one text


def test_a_text_that_is_too_long() -> None:
    status, error = refusal({"input": ["a", "word " * 20]})
    assert (status, error["param"], error["code"]) == (400, "input[1]", "context_length_exceeded")
    assert error["message"].startswith(
        "This model's maximum context length is 16 tokens, however you requested 22 tokens (22 in your prompt"
    )


def test_under_tgi_compat_the_error_is_tgis() -> None:
    error = TextLengthError(22, 16, "input")
    answer = OPENAI.error(error, model(tgi_compat=True), operation="embeddings")
    assert json.loads(answer.body) == {
        "error": "Input validation error: `inputs` must have less than 16 tokens. Given: 22",
        "error_type": "validation",
    }


@pytest.mark.parametrize(
    ("task", "operation", "paths"),
    [
        ("text-ranking", "embeddings", "/v1/score, /score, /v1/rerank, /v2/rerank, /rerank, /invocations"),
        ("fill-mask", "embeddings", "/invocations"),
        ("text-classification", "score", "/pooling, /classify, /invocations"),
    ],
)
def test_a_model_of_another_task_says_where_it_is_asked(task: str, operation: str, paths: str) -> None:
    with pytest.raises(ServingError) as raised:
        OPENAI.parse_task(task, inputs(operation, {"input": "a"}), model())
    assert raised.value.message == f"model 'served' is for {task}, and this path is not; ask it at {paths}"
    assert OPENAI.error(raised.value, model(), operation=operation).status == 400


def test_a_model_that_generates_text_says_where_it_is_asked() -> None:
    with pytest.raises(ServingError, match="ask it at /v1/chat/completions, /v1/completions, /invocations"):
        OPENAI.parse(inputs("embeddings", {"input": "a"}), model())
