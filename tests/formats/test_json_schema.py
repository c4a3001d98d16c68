"""What objects may hold that a schema does not list, and what no schema may hold."""

from __future__ import annotations

from typing import Any

import pytest

from djl_python.core.budgets import SCHEMA_DEPTH
from djl_python.core.errors import ParameterError
from djl_python.formats.json_schema import check, closed

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
def test_a_schema_that_needs_no_change_is_unchanged(schema: dict[str, Any]) -> None:
    assert closed(schema) == schema


NODE: dict[str, Any] = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        # What is required and not listed may be anything, and then others may not be there.
        (
            {**OPEN, "required": ["a", "b"]},
            {**CLOSED, "properties": {**OPEN["properties"], "b": {}}, "required": ["a", "b"]},
        ),
        # A pattern may say more of it: patterns are not read here.
        (
            {**OPEN, "required": ["x_1"], "patternProperties": {"^(x+)+_": {}}},
            {
                **CLOSED,
                "properties": {**OPEN["properties"], "x_1": {}},
                "required": ["x_1"],
                "patternProperties": {"^(x+)+_": {}},
            },
        ),
        (
            {**OPEN, "required": ["a"], "patternProperties": {"^x_": {}}},
            {**CLOSED, "required": ["a"], "patternProperties": {"^x_": {}}},
        ),
        # More properties than are listed.
        ({**OPEN, "minProperties": 2}, {**OPEN, "minProperties": 2, "required": ["a"]}),
        ({**OPEN, "required": ["a"], "minProperties": 1}, {**CLOSED, "required": ["a"]}),
        ({**OPEN, "minProperties": 1}, {**CLOSED, "required": ["a"]}),
        (
            {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2},
            {
                **CLOSED,
                "properties": {"a": {}, "b": {}, "c": {}},
                "anyOf": [{"required": pair} for pair in (["a", "b"], ["a", "c"], ["b", "c"])],
            },
        ),
        ({**OPEN, "maxProperties": 3}, CLOSED),
        (
            {"type": "object", "properties": {"a": {}, "b": {}}, "maxProperties": 1},
            {
                **CLOSED,
                "properties": {"a": {}, "b": {}},
                "anyOf": [{"properties": {name: False}} for name in "ab"],
            },
        ),
        # Too many choices: the first.
        (
            {"type": "object", "properties": {name: {} for name in "abcdefghij"}, "minProperties": 5},
            {**CLOSED, "properties": {name: {} for name in "abcdefghij"}, "required": [*"abcde"]},
        ),
        # What has no instance that ends is left out.
        (
            {"properties": {"a": {"$ref": "#/$defs/node"}, "b": {}}, "$defs": {"node": NODE}},
            {**CLOSED, "properties": {"a": False, "b": {}}, "$defs": {"node": False}},
        ),
        ({"anyOf": [{"$ref": "#"}, OPEN]}, {"anyOf": [{"$ref": "#"}, CLOSED]}),
        # Alternatives that are only distinct if they are closed stay as they are; these are distinct.
        (
            {"oneOf": [{**OPEN, "required": ["a"]}, {"type": "string"}]},
            {"oneOf": [{**CLOSED, "required": ["a"]}, {"type": "string"}]},
        ),
        (
            {"oneOf": [{**OPEN, "required": ["a"]}, {"type": "object", "properties": {"b": {}}, "required": ["b"]}]},
            {
                "oneOf": [
                    {**CLOSED, "required": ["a"]},
                    {**CLOSED, "properties": {"b": {}}, "required": ["b"]},
                ]
            },
        ),
        *(
            (schema, schema)
            for schema in (
                {"oneOf": [{"type": "string"}, {"properties": {"a": {}}}]},
                {"oneOf": [{**OPEN, "required": ["a"]}, {"type": "object", "properties": {"b": {}}}]},
                {"oneOf": [{**OPEN, "required": ["a", "b"]}, {"type": "object", "properties": {}, "required": ["b"]}]},
                {"oneOf": [{**OPEN, "required": ["a"]}, {"type": "object", "required": ["b"]}], "allOf": [{}, {}]},
            )
        ),
    ],
)
def test_objects_have_what_they_need(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert closed(schema) == expected


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "#"}, "no text is an instance of this schema"),
        ({"$ref": "#/$defs/node", "$defs": {"node": NODE}}, "no text is an instance of this schema"),
        ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "no text is an instance of this schema"),
        ({"type": "object", "minProperties": 2}, "expected a minProperties that the listed properties reach, or all"),
    ],
)
def test_a_schema_that_generation_could_not_end_is_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=rf"^x: {message}"):
        check(schema, "x")


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
def test_keywords_that_every_text_meets_are_left_out(keyword: str, value: Any) -> None:
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

    check(deepest := nested(SCHEMA_DEPTH.most), "x")
    assert closed(deepest) == deepest
    for schema in (nested(SCHEMA_DEPTH.most + 2), nested(10_000)):
        with pytest.raises(ParameterError, match=r"^x: expected a JSON schema of at most 100 levels") as caught:
            check(schema, "x")
        assert caught.value.field == "x"


def test_a_malformed_schema_is_unchanged() -> None:
    schema = {"type": "object", "properties": [], "additionalProperties": False, "allOf": 5, "$defs": "x"}
    assert closed(schema) == schema


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": {}}, {"type": "object"}]},
        {"oneOf": [{"type": "object", "properties": {}, "required": [["a"]]}, {"type": "object", "required": [{}]}]},
        {"allOf": [{"$ref": "#/allOf/²"}]},
        {"allOf": [{"$ref": "#/allOf/" + "9" * 5000}]},
        {"properties": [], "required": 5, "minProperties": 1},
        {"properties": {"a": 5}, "required": [1, None], "patternProperties": 7, "maxProperties": True},
        {"type": "object", "properties": {"a": []}, "minProperties": 1.5, "maxProperties": "x"},
        {"patternProperties": {"a{99999999999}": {}, "(" * 3000: {}}, "required": ["a"]},
        {"patternProperties": {"^(a+)+$": {}}, "required": ["a" * 60 + "!"]},
        {"oneOf": [{"const": {}}, {"const": []}, {"enum": 5}, 7]},
        {"properties": {"a": {}, "b": {}}, "minProperties": 1, "anyOf": 5, "allOf": 5},
    ],
)
def test_malformed_schemas_are_left_to_generation(schema: dict[str, Any]) -> None:
    check(schema, "x")
    closed(schema)


def test_long_chains_and_lists_take_no_time_worth_mentioning() -> None:
    """Thousands of references, and hundreds of alternatives: with quadratic time this would take minutes."""
    count = 3000
    definitions: dict[str, Any] = {
        f"d{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/d{i + 1}"}}, "required": ["x"]}
        for i in range(count)
    }
    check({"$ref": "#/$defs/d0", "$defs": definitions | {f"d{count}": {}}}, "x")
    alternatives = [{"type": "object", "properties": {"k": {"const": i}}, "required": ["k"]} for i in range(2000)]
    assert closed({"oneOf": alternatives}) == {"oneOf": alternatives}
    nested: dict[str, Any] = {}
    for _ in range(20):
        nested = {"type": "object", "properties": {"a": nested, **{name: {} for name in "bcdef"}}, "minProperties": 3}
    assert len(str(closed(nested))) < 20_000


def test_references_go_where_they_went() -> None:
    schema = {"properties": {"a": {"$ref": "#/properties/b"}, "b": {"const": 1}}, "minProperties": 1}
    made = closed({**schema, "$schema": "http://json-schema.org/schema#"})
    assert made["properties"] == schema["properties"] and "$schema" not in made
    elsewhere = {"$defs": {"a": {"$id": "http://x/", "$ref": "#"}}, "properties": {"a": {"$ref": "#/$defs/a"}}}
    check(elsewhere, "x")
