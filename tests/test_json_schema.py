"""What objects may hold that a schema does not list, and what no schema may hold."""

from __future__ import annotations

from typing import Any

import pytest

from djl_python.errors import ParameterError
from djl_python.json_schema import MAX_DEPTH, check, closed

OPEN: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED: dict[str, Any] = {**OPEN, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (OPEN, CLOSED),
        ({"type": "object", "properties": {}}, {"type": "object", "properties": {}, "additionalProperties": False}),
        ({"type": "array", "items": OPEN}, {"type": "array", "items": CLOSED}),
        (
            {"properties": {"properties": OPEN}},
            {"type": "object", "properties": {"properties": CLOSED}, "additionalProperties": False},
        ),
        (
            {"properties": {"not": OPEN, "default": OPEN}},
            {"type": "object", "properties": {"not": CLOSED, "default": CLOSED}, "additionalProperties": False},
        ),
        ({"items": {"properties": OPEN["properties"]}}, {"items": CLOSED}),
        ({"$schema": "http://json-schema.org/schema#", **OPEN}, CLOSED),
        ({"$schema": "https://json-schema.org/schema", **OPEN}, CLOSED),
        ({"anyOf": [OPEN, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        (
            {"$ref": "#/$defs/x", "$defs": {"x": OPEN, "allOf": OPEN}},
            {"$ref": "#/$defs/x", "$defs": {"x": CLOSED, "allOf": CLOSED}},
        ),
        (
            {"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": OPEN}},
            {"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": CLOSED}},
        ),
    ],
)
def test_objects_have_what_they_list(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert closed(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        CLOSED,
        {"type": "object"},
        {**OPEN, "additionalProperties": {"type": "string"}},
        {"const": OPEN, "enum": [OPEN], "default": OPEN},
        # Put together of several: none of them lists everything.
        {"allOf": [OPEN, {"$ref": "#/$defs/x"}], "$defs": {"x": OPEN}},
        {"type": "array", "items": {**OPEN, "anyOf": [{"required": ["a"]}, OPEN]}},
        {**OPEN, "$ref": "#/$defs/x", "$defs": {"x": OPEN}},
        {**OPEN, "allOf": [OPEN]},
        {"$schema": "http://json-schema.org/draft-07/schema#", **CLOSED},
        {**OPEN, "not": {"properties": {"a": {"const": 1}}}},
        {**OPEN, "if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["a"]}},
    ],
)
def test_what_stays_as_it_is(schema: dict[str, Any]) -> None:
    assert closed(schema) == schema


@pytest.mark.parametrize("name", ["password", "binary", "path"])
def test_a_format_that_json_schema_does_not_define_says_nothing(name: str) -> None:
    text = {"type": "string", "format": name}
    assert closed({"type": "array", "items": {"anyOf": [text]}}) == {
        "type": "array",
        "items": {"anyOf": [{"type": "string"}]},
    }
    for schema in ({"type": "string", "format": "date"}, {"type": "string", "format": "regex"}, {"const": text}):
        assert closed(schema) == schema


@pytest.mark.parametrize(
    ("keyword", "value"),
    [("uniqueItems", False), ("propertyNames", {"type": "string"}), ("propertyNames", {}), ("propertyNames", True)],
)
def test_what_every_json_text_meets_is_left_out(keyword: str, value: Any) -> None:
    assert closed({"items": {keyword: value}}) == {"items": {}}
    for schema in ({"const": {keyword: value}}, {"uniqueItems": True}, {"propertyNames": {"pattern": "a"}}):
        assert closed(schema) == schema
    named = {"type": "object", "properties": {keyword: {}}, "additionalProperties": False}
    assert closed(named) == named


def test_properties_are_an_objects_where_it_is_put_together_of_several() -> None:
    part: dict[str, Any] = {"properties": {"a": {"type": "integer"}}}
    assert closed({**part, "anyOf": [part, {"required": ["a"]}]}) == {**OPEN, "anyOf": [OPEN, {"required": ["a"]}]}


@pytest.mark.parametrize(
    "bounds",
    [
        {"minimum": 2**64, "maximum": 2**64 + 5},
        {"exclusiveMinimum": 2**63},
        {"minimum": 2**53 + 1},
        {"maximum": 2**53 + 3},
        {"exclusiveMaximum": -1e19},
    ],
)
def test_bounds_that_would_not_be_kept(bounds: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=r"^x: expected a \w+ that a 64-bit number holds, got ") as caught:
        check({"properties": {"default": {"anyOf": [{"type": "integer", **bounds}]}}}, "x")
    assert caught.value.field == "x"


@pytest.mark.parametrize(
    "schema",
    [
        {"minimum": -(2**63), "maximum": 2**63 - 1},
        {"minimum": 2**63 - 1, "maximum": -(2**63)},
        # What is left out is beyond 64 bits.
        {"minimum": -(2**64), "maximum": 2**64},
        {"minimum": 0.1, "exclusiveMaximum": 10, "exclusiveMinimum": True},
        {"const": {"minimum": 2**64}},
        {"properties": {"minimum": {"type": "string"}}},
        {"properties": [], "$defs": 5},
    ],
)
def test_bounds_that_are_kept(schema: dict[str, Any]) -> None:
    check(schema, "x")


def test_a_schema_has_so_many_levels() -> None:
    def nested(levels: int) -> dict[str, Any]:
        schema: dict[str, Any] = {}
        for _ in range((levels - 1) // 2):
            schema = {"anyOf": [schema]}
        return schema

    check(deepest := nested(MAX_DEPTH), "x")
    assert closed(deepest) == deepest
    for schema in (nested(MAX_DEPTH + 2), nested(10_000)):
        with pytest.raises(ParameterError, match=r"^x: expected a JSON schema of at most 100 levels") as caught:
            check(schema, "x")
        assert caught.value.field == "x"


def test_what_is_no_schema_is_left_to_who_reads_it() -> None:
    schema = {"type": "object", "properties": [], "additionalProperties": False, "allOf": 5, "$defs": "x"}
    assert closed(schema) == schema
