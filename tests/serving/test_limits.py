"""What one request may ask for, over real sockets: what is beyond is refused as each API refuses, with the field, the
limit and what came."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest

from djl_python.core import budgets
from djl_python.testing import RunningServer, running_server
from tests.conftest import DEMO

CHAT, COMPLETE, LMI, GENERATE = "/v1/chat/completions", "/v1/completions", "/invocations", "/generate"
TRITON, INFER = "/v2/models/demo/generate", "/v2/models/demo/infer"
MESSAGES, RESPONSES, OLLAMA = "/v1/messages", "/v1/responses", "/api/chat"
CLAUDE: Final = {"model": "demo", "max_tokens": 1}
TEXTS: Final = [{"type": "text", "text": "a"}] * (budgets.PARTS.most + 1)
HELLO: Final = [{"role": "user", "content": "hi"}]
MANY: Final = [0] * budgets.VALUES.most


def post(server: RunningServer, path: str, body: Any, content_type: str = "application/json") -> httpx.Response:
    data = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    return httpx.post(server.url + path, content=data, headers={"content-type": content_type}, timeout=60)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": HELLO, "metadata": MANY}),
        (COMPLETE, {"prompt": MANY}),
        (LMI, {"inputs": "a", "parameters": {"x": MANY}}),
        (LMI, {"messages": HELLO, "metadata": MANY}),
        (GENERATE, {"inputs": "a", "parameters": {"stop": MANY}}),
        ("/generate_stream", {"inputs": "a", "x": MANY}),
        ("/tokenize", {"inputs": "a", "x": MANY}),
        ("/chat_tokenize", {"messages": HELLO, "metadata": MANY}),
        (MESSAGES, {"model": "demo", "max_tokens": 1, "messages": HELLO, "metadata": MANY}),
        (RESPONSES, {"input": "a", "prompt_cache_options": MANY}),
        (OLLAMA, {"model": "demo", "messages": HELLO, "x": MANY}),
        (TRITON, {"text_input": "a", "stop": MANY}),
        (INFER, {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": MANY}]}),
    ],
)
def test_values_of_a_body_are_limited(demo: RunningServer, path: str, body: Any) -> None:
    refused = post(demo, path, body)
    assert refused.status_code == 413
    assert f"the request body: expected at most {budgets.VALUES.most} JSON values, got at least " in refused.text


def test_an_answer_to_a_body_with_almost_too_many_values(demo: RunningServer) -> None:
    within = MANY[:-20]
    assert post(demo, COMPLETE, {"prompt": "a", "max_tokens": 1, "metadata": within}).status_code == 200
    body = {"inputs": "a", "parameters": {"max_new_tokens": 1, "x": within}}
    assert post(demo, LMI, body).headers["x-ignored-parameters"] == "x"


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/repository/models/demo/unload"])
def test_values_that_the_front_end_reads_are_limited(demo: RunningServer, path: str) -> None:
    refused = post(demo, path, {"x": [0] * budgets.PAGE_VALUES.most})
    assert (refused.status_code, set(refused.json())) == (413, {"error"})


TOOLS: Final = [{"type": "function", "function": {"name": f"f{i}"}} for i in range(budgets.TOOLS.most + 1)]
LONG_SCHEMAS: Final = [
    ({"enum": [*range(budgets.SCHEMA_ENUM.most + 1)]}, "a JSON schema of at most 10000 enum values"),
    ({"title": "a" * (budgets.SCHEMA_CHARS.most + 1)}, "a JSON schema of at most 262144 characters"),
    ({"allOf": [{"$ref": "#/%24defs/a"}] * 5_001, "$defs": {"a": {}}}, "a JSON schema of at most 5000 references"),
    ({"properties": {f"{i}": {} for i in range(50_000)}}, "a JSON schema of at most 50000 JSON values"),
    ({"anyOf": [{"const": i} for i in range(10_001)]}, "a JSON schema of at most 10000 alternatives"),
]


@pytest.mark.parametrize(
    ("path", "body", "field", "expected"),
    [
        (CHAT, {"messages": HELLO * 10_001}, "messages", "at most 10000 items"),
        (LMI, {"messages": HELLO * 10_001}, "messages", "at most 10000 items"),
        ("/chat_tokenize", {"messages": HELLO * 10_001}, "messages", "at most 10000 items"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 5_001}] * 2},
            "messages",
            "at most 10000 content parts, got 10002",
        ),
        (MESSAGES, CLAUDE | {"messages": HELLO * 10_001}, "messages", "at most 10000 items"),
        (MESSAGES, CLAUDE | {"messages": HELLO, "system": TEXTS}, "system", "at most 10000 content parts, got 10001"),
        (
            MESSAGES,
            CLAUDE
            | {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": TEXTS}]}
                ]
            },
            "messages",
            "at most 10000 content parts, got 10002",
        ),
        (MESSAGES, CLAUDE | {"messages": HELLO, "stop_sequences": ["a"] * 1_025}, "stop_sequences: ", "at most 1024"),
        (f"{MESSAGES}/count_tokens", {"model": "demo", "messages": HELLO, "system": TEXTS}, "system", "content parts"),
        (RESPONSES, {"input": HELLO * 10_001}, "input", "at most 10000 items"),
        (
            RESPONSES,
            {"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}] * 10_001}]},
            "input",
            "at most 10000 content parts, got 10001",
        ),
        (OLLAMA, {"model": "demo", "messages": HELLO * 10_001}, "messages", "at most 10000 items"),
        (
            OLLAMA,
            {"model": "demo", "messages": HELLO, "options": {"stop": ["a"] * 1_025}},
            "options.stop: ",
            "at most 1024 texts",
        ),
        *(
            (OLLAMA, {"model": "demo", "messages": HELLO, "format": schema}, "format", said)
            for schema, said in LONG_SCHEMAS
        ),
        (CHAT, {"messages": HELLO, "tools": TOOLS}, "tools", "at most 1024 items"),
        (
            CHAT,
            {"messages": HELLO, "chat_template_kwargs": {f"{i}": i for i in range(257)}},
            "chat_template_kwargs",
            "an object of at most 256 items, got 257 items",
        ),
        *((COMPLETE, {"prompt": "a", "guided_json": schema}, "guided_json", said) for schema, said in LONG_SCHEMAS),
        *(
            (COMPLETE, {"prompt": "a", "guided_json": json.dumps(schema)}, "guided_json", "")
            for schema, _ in LONG_SCHEMAS
        ),
        *(
            (LMI, {"inputs": "a", "parameters": {"guided_json": schema}}, "parameters.guided_json", said)
            for schema, said in LONG_SCHEMAS
        ),
        *(
            (GENERATE, {"inputs": "a", "parameters": {"grammar": {"type": "json", "value": schema}}}, "grammar", said)
            for schema, said in LONG_SCHEMAS
        ),
        (
            CHAT,
            {
                "messages": HELLO,
                "tools": [{"function": {"name": "f", "parameters": {"enum": [*range(5_001)], "type": "object"}}}] * 2,
            },
            "tools[1].function.parameters",
            "at most 10000 enum values, got at least 10002",
        ),
        (
            COMPLETE,
            {"prompt": "a", "guided_regex": "a" * 32_769},
            "guided_regex",
            "at most 32768 characters, got 32769",
        ),
        (
            COMPLETE,
            {"prompt": ["a"] * 1_024, "guided_json": {"enum": ["a" * 70_000]}},
            "guided_json",
            "at most 67108864 characters of grammars together",
        ),
        (
            INFER,
            {"inputs": [{"name": "text_input", "shape": [1] * 33, "datatype": "BYTES", "data": ["a"]}]},
            "inputs[0].shape",
            "at most 32 items",
        ),
        (
            INFER,
            {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["a"]}] * 65},
            "inputs",
            "at most 64 items",
        ),
        (
            INFER,
            {
                "inputs": [
                    {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["a"]},
                    {"name": "sampling_parameters", "shape": [1], "datatype": "BYTES", "data": ["a" * 1_048_577]},
                ]
            },
            "sampling_parameters",
            "at most 1048576 characters together, got 1048577",
        ),
        (
            INFER,
            {
                "inputs": [
                    {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["a"]},
                    {"name": "top_k", "shape": [1_025], "datatype": "INT32", "data": [1] * 1_025},
                ]
            },
            "inputs[1].shape",
            "at most 1024 elements, got 1025",
        ),
    ],
)
def test_a_field_that_asks_for_too_much_is_refused_like_any_wrong_field(
    demo: RunningServer, path: str, body: Any, field: str, expected: str
) -> None:
    refused = post(demo, path, body)
    assert refused.status_code == {LMI: 424, GENERATE: 422, "/chat_tokenize": 422}.get(path, 400)
    assert field in refused.text and expected in refused.text, refused.text
    assert len(refused.text) < 1_000


def test_fields_of_a_form_are_limited(demo: RunningServer) -> None:
    form = "application/x-www-form-urlencoded"
    assert post(demo, LMI, b"inputs=a" + b"&a=1" * 9_999, form).status_code == 200
    refused = post(demo, LMI, b"inputs=a" + b"&a=1" * 10_000, form)
    assert (refused.status_code, refused.json()["type"]) == (413, "RequestEntityTooLargeException")
    parts = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n' * 10_001 + b"--x--\r\n"
    refused = post(demo, LMI, parts, "multipart/form-data; boundary=x")
    assert (refused.status_code, refused.json()["message"]) == (
        413,
        "the request body: expected at most 10000 fields, got at least 10001",
    )


def test_json_nested_too_deeply_is_refused(demo: RunningServer) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    for path in (CHAT, COMPLETE, LMI, GENERATE, TRITON, INFER):
        refused = post(demo, path, f'{{"inputs": {deep}}}'.encode())
        assert refused.status_code == (424 if path == LMI else 400)
    tensors = [
        {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["a"]},
        {"name": "sampling_parameters", "shape": [1], "datatype": "BYTES", "data": [f'{{"top_k": {deep}}}']},
    ]
    refused = post(demo, INFER, {"inputs": tensors})
    assert (refused.status_code, len(refused.text) < 200) == (400, True)
    tensors[1]["data"] = [json.dumps({"top_k": deep})]
    assert post(demo, INFER, {"inputs": tensors}).status_code == 400


@pytest.fixture(scope="module")
def mindie() -> Iterator[RunningServer]:
    environment = {"OPTION_THREADS": "1", "OPTION_TGI_DIALECT": "mindie", "OPTION_MAX_REQUEST_VALUES": "100000"}
    with running_server("-m", f"demo={DEMO}", environment=environment) as server:
        yield server


def test_mindies_parts_are_limited(mindie: RunningServer) -> None:
    body: dict[str, Any] = {"inputs": [{"type": "text", "text": "a"}] * 10_001}
    refused = post(mindie, "/generate_stream", body)
    assert refused.status_code == 422 and "at most 10000 items" in refused.text
    refused = post(mindie, "/generate_stream", body | {"x": MANY})
    assert refused.status_code == 413


def test_a_setting_says_how_many_values_a_body_may_have(mindie: RunningServer) -> None:
    body = {"prompt": "a", "max_tokens": 1, "metadata": [0] * 99_990}
    assert post(mindie, COMPLETE, body).status_code == 200
    refused = post(mindie, COMPLETE, body | {"metadata": [0] * 100_000})
    assert refused.status_code == 413
    assert "the request body: expected at most 100000 JSON values, got at least " in refused.text
