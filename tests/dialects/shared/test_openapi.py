"""The document: valid OpenAPI 3.1, complete, and saying what the types say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
import pytest
from msgspec import Meta
from openapi_spec_validator import OpenAPIV31SpecValidator

from djl_python.config import ModelConfig
from djl_python.core.errors import ServingError
from djl_python.dialects import all_dialects
from djl_python.dialects.shared.base import Answer, Dialect, Kind, Parsed, Route
from djl_python.dialects.shared.openapi import openapi
from djl_python.inputs import Input
from djl_python.server.app import OWN_ROUTES
from djl_python.server.routes import RouteTable

TABLE = RouteTable(all_dialects(), OWN_ROUTES)
DOCUMENT = json.loads(openapi([*TABLE.rows, *TABLE.shared]))


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
    documented = {(method.upper(), path) for path, operations in DOCUMENT["paths"].items() for method in operations}
    assert {(route.method, route.path) for route, _ in TABLE.rows} == documented
    names = [operation["operationId"] for path in DOCUMENT["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names))


def test_every_route_says_what_it_takes_and_gives() -> None:
    bare = [
        f"{route.method} {route.path}"
        for route, _ in TABLE.rows
        if not (route.summary and route.responses)
        or (route.method == "POST" and route.request is None and not route.path.endswith("/cancel"))
    ]
    assert bare == []


def test_a_form_with_files_is_documented_as_one() -> None:
    (content_type,) = DOCUMENT["paths"]["/v1/files"]["post"]["requestBody"]["content"]
    assert content_type == "multipart/form-data"
    upload = DOCUMENT["components"]["schemas"]["Upload"]["properties"]
    assert upload["file"]["contentMediaType"] == "application/octet-stream"
    assert upload["purpose"] == {"enum": ["batch"]}


def test_what_a_stream_may_hold_besides_what_was_asked_for() -> None:
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
        found = set()
        for one in data.get("anyOf", [data]):
            schema = one.get("contentSchema", {})
            found |= (
                {one["const"]}
                if "const" in one
                else {each["$ref"].rpartition("/")[2] for each in schema.get("anyOf", [schema])}
            )
        assert found == names, path


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
