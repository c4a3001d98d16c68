"""The document: valid OpenAPI 3.1, complete, and saying what the types say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
import pytest
from jsonschema import Draft202012Validator
from msgspec import Meta
from openapi_spec_validator import OpenAPIV31SpecValidator

from djl_python.config import ModelConfig
from djl_python.core.errors import ServingError
from djl_python.dialects import all_dialects
from djl_python.dialects.openai.batches import ENDPOINTS
from djl_python.dialects.shared.base import Answer, Dialect, Kind, Parsed, Route
from djl_python.dialects.shared.openapi import openapi
from djl_python.inputs import Input
from djl_python.server.app import OWN_ROUTES
from djl_python.server.routes import RouteTable

TABLE = RouteTable(all_dialects(), OWN_ROUTES)
BATCH = {"input_file_id": "f", "endpoint": "/v1/completions", "completion_window": "24h"}
DOCUMENT = json.loads(openapi([*TABLE.rows, *TABLE.shared]))


JSON_BODIES = {
    f"{method} {path}": operation["requestBody"]["content"]["application/json"]
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
    if "application/json" in operation.get("requestBody", {}).get("content", {})
}


class Question(msgspec.Struct):
    """What is asked."""

    text: Annotated[str, Meta(min_length=1, description="In words.")]


class Reply(msgspec.Struct):
    """What is said."""

    text: str


class Refusal(msgspec.Struct):
    """Why not."""

    error: str


class Talk(Dialect):
    """A dialect with a row of every kind."""

    name = "talk"
    routes = (
        Route(
            "POST",
            "/talk/{model}",
            "talk",
            summary="Talk.",
            request=Question,
            responses={200: {"application/json": Reply}},
        ),
        Route(
            "POST", "/stream", "s", responses={200: {"text/event-stream; charset=utf-8": (Reply, Refusal, "[DONE]")}}
        ),
        Route("POST", "/lines", "l", request=(Question, Reply), responses={200: {"application/jsonlines": Reply}}),
        Route("POST", "/lines", "l", request=Refusal, responses={200: {"application/jsonlines": Refusal}, 418: {}}),
        Route("POST", "/lines", "l", request=Question, responses={200: {"application/json": Reply}}),
        Route("GET", "/lines", "lines", Kind.PAGE, responses={204: {}}),
        Route("POST", "/late", "late"),
        Route("POST", "/late", "late", request=Question),
        Route("POST", "/late", "late"),
        Route("GET", "/bare", "bare", Kind.PAGE),
        Route("*", "/any", "any", Kind.PAGE, request=Question, responses={200: {}, 400: {"text/plain": str}}),
    )
    errors: ClassVar[Any] = {400: {"application/json": Refusal}}

    def parse(self, inputs: Input, model: ModelConfig) -> Parsed:
        raise NotImplementedError

    def error(
        self, error: ServingError, model: ModelConfig | None = None, *, operation: str = "", inputs: Input | None = None
    ) -> Answer:
        return Answer(error.status, b"")

    def stream_error(self, error: ServingError, headers: Mapping[str, str], model: ModelConfig | None = None) -> bytes:
        return b""


@pytest.fixture(scope="module")
def talk() -> Any:
    rows = [*((route, Talk()) for route in Talk.routes), (Route("GET", "/own", "own", Kind.PAGE), None)]
    document = json.loads(openapi(rows))
    OpenAPIV31SpecValidator(document).validate()
    return document


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


@pytest.mark.parametrize("operation", JSON_BODIES)
def test_an_example_is_a_body_with_what_it_needs_alone(operation: str) -> None:
    """But where nothing is needed, and without anything the body would say too little to be an example."""
    body = JSON_BODIES[operation]
    schema = {**body["schema"], "components": DOCUMENT["components"]}
    validator = Draft202012Validator(schema)
    assert validator.is_valid(body["example"]), list(validator.iter_errors(body["example"]))
    if not validator.is_valid({}):
        for name in body["example"]:
            rest = {key: value for key, value in body["example"].items() if key != name}
            assert not validator.is_valid(rest), name


def test_a_row_says_which_headers_it_reads() -> None:
    operation = DOCUMENT["paths"]["/invocations"]["post"]
    (header,) = [one for one in operation["parameters"] if one["in"] == "header"]
    assert header["name"] == "X-Amzn-SageMaker-Session-Id" and not header.get("required")


def test_messages_of_any_role_are_described() -> None:
    """As those of the roles with a type of their own, or as another, never as both."""
    messages = {"$ref": "#/components/schemas/ChatRequest", "components": DOCUMENT["components"]}
    validator = Draft202012Validator(messages)
    for message, valid in (
        ({"role": "user", "content": "x"}, True),
        ({"role": "document 1", "content": "x"}, True),
        ({"role": "function", "name": "f", "content": "x"}, True),
        ({"role": "function", "content": "x"}, False),
        ({"role": "", "content": "x"}, False),
        ({"role": "document"}, False),
    ):
        assert validator.is_valid({"messages": [message]}) == valid, message


def test_a_row_says_what_its_types_say(talk: Any) -> None:
    operation = talk["paths"]["/talk/{model}"]["post"]
    names = (operation["operationId"], operation["summary"], operation["tags"])
    assert names == ("post_talk_model", "Talk.", ["talk"])
    assert operation["parameters"] == [
        {
            "name": "model",
            "in": "path",
            "required": True,
            "description": "A model's name.",
            "schema": {"type": "string", "minLength": 1},
        }
    ]
    assert operation["requestBody"] == {"required": True, "content": {"application/json": {"schema": ref("Question")}}}
    assert operation["responses"] == {
        "200": {"description": "OK", "content": {"application/json": {"schema": ref("Reply")}}},
        "400": {"description": "Bad Request", "content": {"application/json": {"schema": ref("Refusal")}}},
    }
    assert list(operation["responses"]) == ["200", "400"]
    text = talk["components"]["schemas"]["Question"]["properties"]["text"]
    assert text == {"type": "string", "minLength": 1, "description": "In words."}


def test_a_stream_is_described_by_its_events_or_lines(talk: Any) -> None:
    (media,) = talk["paths"]["/stream"]["post"]["responses"]["200"]["content"].values()
    data = {
        "anyOf": [
            {"const": "[DONE]"},
            {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": {"anyOf": [ref("Reply"), ref("Refusal")]},
            },
        ]
    }
    assert media == {"schema": {"type": "object", "required": ["data"], "properties": {"data": data}}}
    lines = talk["paths"]["/lines"]["post"]
    assert set(lines["responses"]) == {"200", "400", "418"}
    # Several dialects have it: what any of them takes and answers, once.
    assert lines["responses"]["200"]["content"] == {
        "application/json": {"schema": ref("Reply")},
        "application/jsonlines": {
            "schema": {"type": "string"},
            "x-itemSchema": {"anyOf": [ref("Reply"), ref("Refusal")]},
        },
    }
    assert lines["requestBody"]["content"]["application/json"]["schema"] == {
        "anyOf": [ref("Question"), ref("Reply"), ref("Refusal")]
    }


def test_rows_that_say_little_are_there_all_the_same(talk: Any) -> None:
    assert talk["servers"] == [{"url": "/"}]
    assert set(talk["paths"]["/lines"]["get"]["responses"]) == {"204", "400"}
    late = talk["paths"]["/late"]["post"]["requestBody"]["content"]
    assert late == {"application/json": {"schema": ref("Question")}}
    bare = talk["paths"]["/bare"]["get"]
    assert bare.keys() == {"operationId", "tags", "responses"}
    assert set(bare["responses"]) == {"200", "400"} and bare["responses"]["200"] == {"description": "OK"}
    assert talk["paths"]["/own"]["get"]["tags"] == ["server"]
    assert set(talk["paths"]["/own"]["get"]["responses"]) == {"200"}
    assert set(talk["paths"]["/any"]) == {"get", "post", "put"}
    assert not talk["paths"]["/any"]["get"]["requestBody"]["required"]
    assert set(talk["paths"]["/any"]["get"]["responses"]["400"]["content"]) == {"application/json", "text/plain"}


def test_the_servers_document_is_valid_and_complete() -> None:
    OpenAPIV31SpecValidator(DOCUMENT).validate()
    tags = {tag for path in DOCUMENT["paths"].values() for operation in path.values() for tag in operation["tags"]}
    assert {tag["name"] for tag in DOCUMENT["tags"] if tag["description"]} == tags
    documented = {(method.upper(), path) for path, operations in DOCUMENT["paths"].items() for method in operations}
    assert {(route.method, route.path) for route, _ in TABLE.rows} == documented
    names = [operation["operationId"] for path in DOCUMENT["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names))


def test_every_route_says_what_it_takes_and_gives() -> None:
    bare = [
        f"{route.method} {route.path}"
        for route, _ in TABLE.rows
        if not (route.summary and route.responses)
        or (
            (route.method == "POST" and route.request is None and not route.path.endswith(("/cancel", "/unload")))
            and not route.summary.startswith("Refused")
        )
    ]
    assert bare == []


def test_a_form_with_files_is_documented_as_one() -> None:
    (content_type,) = DOCUMENT["paths"]["/v1/files"]["post"]["requestBody"]["content"]
    assert content_type == "multipart/form-data"
    upload = DOCUMENT["components"]["schemas"]["Upload"]["properties"]
    assert upload["file"]["contentMediaType"] == "application/octet-stream"
    assert upload["purpose"] == {"enum": ["batch"]}


def test_a_streams_schema_has_errors_and_end_marks() -> None:
    """Errors, and what ends it."""
    expected = {
        "/v1/chat/completions": {"ChatChunk", "ErrorBody", "StreamFailure", "[DONE]"},
        "/v1/completions": {"Completion", "ErrorBody", "StreamFailure", "[DONE]"},
        "/generate_stream": {"StreamResponse", "MindieEvent", "ErrorResponse"},
        "/": {"StreamResponse", "ErrorResponse"},
        "/invocations": {"LmiLine", "LmiOutputs", "LmiFailure", "ChatChunk", "Completion", "[DONE]"},
        "/v2/models/{model}/generate_stream": {"TritonResponse", "TritonError"},
    }
    for path, names in expected.items():
        content = DOCUMENT["paths"][path]["post"]["responses"]["200"]["content"]
        (media,) = (body for content_type, body in content.items() if content_type.startswith("text/event-stream"))
        data = media["schema"]["properties"]["data"]
        parts = set()
        for one in data.get("anyOf", [data]):
            schema = one.get("contentSchema", {})
            parts |= (
                {one["const"]}
                if "const" in one
                else {each["$ref"].rpartition("/")[2] for each in schema.get("anyOf", [schema])}
            )
        assert parts == names, path


def test_component_names_are_of_the_api_and_not_of_our_modules() -> None:
    assert [name for name in DOCUMENT["components"]["schemas"] if "." in name] == []


def test_parameters_of_a_query_are_those_of_its_type() -> None:
    operation = DOCUMENT["paths"]["/models"]["get"]
    limit, token = operation["parameters"]
    assert (limit["name"], limit["in"], limit["required"], limit["schema"]["minimum"]) == ("limit", "query", False, 1)
    assert token["name"] == "next_page_token"
    register = DOCUMENT["paths"]["/models"]["post"]
    url = register["parameters"][0]
    assert (url["name"], url["required"]) == ("url", False)  # it may be in the body
    assert register["requestBody"]["content"]["application/json"]


@pytest.mark.parametrize(
    ("path", "body", "valid"),
    [
        ("/v1/completions", {"prompt": "a", "n": 28.0}, True),
        ("/v1/completions", {"prompt": []}, False),
        ("/v1/completions", {"prompt": [[]]}, False),
        ("/v1/completions", {"prompt": ["a", 1]}, False),
        ("/v1/completions", {"prompt": ["a", "b"]}, True),
        ("/v1/completions", {"prompt": [[1], [2]]}, True),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"x": 1}}, False),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "modalities": ["audio"]}, False),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "modalities": ["text"]}, True),
        ("/predictions/{model}", {"inputs": []}, False),
        ("/predictions/{model}", {"inputs": [""]}, False),
        ("/predictions/{model}", {"inputs": ["a"]}, True),
        ("/generate", {"inputs": ""}, False),
        ("/generate", {"inputs": "a", "parameters": {"best_of": 0}}, False),
        ("/generate", {"inputs": "a", "parameters": {"top_n_tokens": -1}}, False),
        ("/tokenize", {"inputs": ""}, True),
        ("/v2/models/{model}/generate", {"text_input": ["a", "b"]}, False),
        ("/v2/models/{model}/generate", {"text_input": ["a"]}, True),
        ("/v2/models/{model}/infer", {"inputs": [{"name": "seed", "shape": [1], "datatype": "INT64"}]}, False),
        ("/v2/models/{model}/infer", {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES"}]}, True),
        ("/v1/batches", BATCH, True),
        ("/v1/batches", BATCH | {"endpoint": "/v1/images"}, False),
        ("/v1/batches", BATCH | {"color": 1}, False),
    ],
)
def test_the_schema_refuses_bodies_that_the_server_refuses(path: str, body: dict[str, Any], valid: bool) -> None:
    schema = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = Draft202012Validator({**schema, "components": DOCUMENT["components"]})
    assert validator.is_valid(body) is valid


def test_batches_go_to_the_openai_routes_that_generate() -> None:
    rows = (route for route, dialect in TABLE.rows if dialect is not None and dialect.name == "openai")
    assert [one.path for one in rows if one.kind is Kind.GENERATE and "{" not in one.path] == list(ENDPOINTS)
