"""What objects may hold that a schema does not list."""

from __future__ import annotations

from typing import Any

import pytest

from djl_python.json_schema import closed

OPEN: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED: dict[str, Any] = {**OPEN, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (OPEN, CLOSED),
        ({"type": "object", "properties": {}}, {"type": "object", "properties": {}, "additionalProperties": False}),
        ({"type": "array", "items": OPEN}, {"type": "array", "items": CLOSED}),
        ({"properties": {"properties": OPEN}}, {"properties": {"properties": CLOSED}, "additionalProperties": False}),
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
        {**OPEN, "if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["a"]}},
    ],
)
def test_what_stays_as_it_is(schema: dict[str, Any]) -> None:
    assert closed(schema) == schema
