"""The fields of a request as a Markdown table, made of the type that the dialect reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

Schema = Mapping[str, Any]


def fields_table(struct: type[msgspec.Struct], without: Collection[str] = ()) -> str:
    """Field, type and meaning of each field but `without`, in the order of the declaration.

    The meaning is the field's description, else the docstring of its type.
    """
    schema = msgspec.json.schema(struct)
    definitions = schema["$defs"]
    rows = [
        f"| `{name}` | {_type(field, definitions)} | {_meaning(field, definitions)} |"
        for name, field in definitions[struct.__name__]["properties"].items()
        if name not in without
    ]
    return "\n".join(["| field | type | meaning |", "|---|---|---|", *rows])


def _alternatives(field: Schema) -> list[Schema]:
    """The types that a field may have, other than null."""
    return [one for one in field.get("anyOf", [field]) if one.get("type") != "null"]


def _meaning(field: Schema, definitions: Schema) -> str:
    """The description of the field, or of one of its types."""
    types = _alternatives(field)
    named = [definitions[one["$ref"].rpartition("/")[2]] for one in types if "$ref" in one]
    described = (one.get("description") for one in (field, *types, *(named if len(types) == 1 else ())))
    return " ".join(next(filter(None, described), "").split()).replace("|", "\\|")


def _type(field: Schema, definitions: Schema) -> str:
    """The types of a field in words."""
    words = (_words(one, definitions) for one in _alternatives(field))
    return " or ".join(dict.fromkeys(word for word in words if word)) or "anything"


def _words(schema: Schema, definitions: Schema) -> str:
    if "$ref" in schema:
        return _words(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        return _type(schema, definitions)
    match schema.get("type"):
        case "integer" | "number" as kind:
            return f"{kind}{_range(schema)}"
        case "string":
            return "text"
        case "boolean":
            return "true, false"
        case "array":
            return f"array of {_type(schema.get('items', {}), definitions)}"
        case "object":
            return "object"
        case _:
            return "" if not schema.get("enum") else " or ".join(f"`{value}`" for value in schema["enum"])


def _range(schema: Schema) -> str:
    """The bounds of a number, with a blank before them."""
    bounds = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
    said = [f"{sign} {schema[key]}" for key, sign in bounds if key in schema]
    return f" {' and '.join(said)}" if said else ""
