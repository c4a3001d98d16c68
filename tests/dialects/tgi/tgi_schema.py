"""TGI 2.3.2's own OpenAPI document (data/tgi_2_3_2.json, unchanged) as JSON schemas, to hold answers against."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

DOCUMENT = json.loads((Path(__file__).parent / "data" / "tgi_2_3_2.json").read_bytes())


def check(value: Any, component: str) -> None:
    """Hold `value` against a component of the document. Objects may have no property that the component does not.

    Raises:
        jsonschema.ValidationError: it is something else.
    """
    schema = {"$ref": f"#/components/schemas/{component}", "components": _SCHEMA["components"]}
    jsonschema.Draft202012Validator(schema).validate(value)


def documented(path: str, status: int, method: str = "post") -> set[str]:
    """The content types that the document has for an answer."""
    responses = DOCUMENT["paths"][path][method]["responses"]
    return set(responses[str(status)].get("content", {}))


def _json_schema(node: Any) -> Any:
    """OpenAPI 3.0 as JSON Schema: `nullable` becomes a type, objects are closed."""
    if isinstance(node, list):
        return [_json_schema(item) for item in node]
    if not isinstance(node, dict):
        return node
    schema = {key: _json_schema(value) for key, value in node.items() if key not in ("nullable", "example", "default")}
    if node.get("type") == "object" and "properties" in node:
        schema["additionalProperties"] = False
    return {"anyOf": [schema, {"type": "null"}]} if node.get("nullable") is True else schema


_SCHEMA = _json_schema(DOCUMENT)
