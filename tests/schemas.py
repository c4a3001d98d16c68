"""JSON schemas made up at random, for structured output.

`random_schema` makes such as people write, `odd_schema` puts together whatever the standard allows: it may contradict
itself, or use what generation lacks.
"""

from __future__ import annotations

import random
from typing import Any


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """A schema whose instances are short, whatever a random model writes."""
    kinds = ["string", "pattern", "enum", "integer", "number", "boolean", "const", "nullable"]
    kind = "object" if depth == 0 else rng.choice(kinds + ["object", "array", "anyOf"] * (3 - depth))
    low = rng.randrange(-500, 500)
    if kind == "object":
        names = rng.sample(["name", "items", "x", "größe", "a b", 'q"'], rng.randrange(1, 5))
        return {
            "type": "object",
            "properties": {name: random_schema(rng, depth + 1) for name in names},
            "required": rng.sample(names, rng.randrange(len(names) + 1)),
            "additionalProperties": False,
        }
    schemas: dict[str, Any] = {
        "string": {"type": "string", "maxLength": rng.randrange(1, 12)},
        "pattern": {"type": "string", "pattern": rng.choice(["^[a-c]{2,4}$", "^(x|yz)+-\\d{3}$", "^\\w{1,5}@q\\.de$"])},
        "enum": {"enum": rng.sample(["red", "green", 1, 2.5, None, True, "the value"], 3)},
        "integer": {"type": "integer", "minimum": low, "maximum": low + rng.choice([0, 7, 3000])},
        "number": {"type": "number", "exclusiveMinimum": low, "maximum": low + 10},
        "boolean": {"type": "boolean"},
        "const": {"const": {"fixed": [1, "two", None]}},
        "nullable": {"type": ["string", "null"], "minLength": 1, "maxLength": 5},
    }
    if kind == "array":
        count = rng.randrange(3)
        return {"type": "array", "items": random_schema(rng, depth + 1), "minItems": count, "maxItems": count + 2}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth + 1) for _ in range(2)]}
    schema: dict[str, Any] = schemas[kind]
    return schema


_NAMES = ["a", "b", "ab", "name", "x_1", "größe", 'q"', "score"]
_PATTERNS = ["^score$", "^a", "^x_", "^[a-z]+$", ".", "^(a|b)$", "b$", "^$", "_id$", "^.*$", "^[a-z]$"]
_STRINGS: list[dict[str, Any]] = [
    {},
    {"maxLength": 4},
    {"minLength": 1, "maxLength": 3},
    {"pattern": "^[a-c]{1,3}$"},
    {"pattern": "ab"},
    {"format": "date"},
    {"format": "email"},
    {"pattern": "^a", "maxLength": 3},
    {"pattern": "^[a-z]{5}$", "maxLength": 3},
]
_NUMBERS: list[dict[str, Any]] = [
    {},
    {"minimum": 0},
    {"minimum": 3, "maximum": 17},
    {"multipleOf": 5},
    {"multipleOf": 5, "minimum": 1, "maximum": 4},
    {"exclusiveMinimum": 2, "exclusiveMaximum": 3},
    {"minimum": 5, "maximum": 4},
    {"minimum": 0.5, "maximum": 1.5},
]
_VALUES: list[Any] = ["red", "green", 1, 2.5, None, True, "x", ["a"], {"a": 1}]


def odd_schema(rng: random.Random) -> dict[str, Any]:
    """Keywords of draft 2020-12, combined as they come; definitions may refer to each other."""
    names = rng.sample(["node", "leaf", "x"], rng.randrange(3))
    schema = _odd_object(rng, 0, names) if rng.random() < 0.8 else {"allOf": [_odd(rng, 1, names)]}
    return {**schema, "$defs": {name: _odd(rng, 1, names) for name in names}} if names else schema


def _odd(rng: random.Random, depth: int, names: list[str]) -> Any:
    drawn = rng.random()
    if depth > 3 or drawn < 0.4:
        return _odd_scalar(rng)
    beside = _odd_object(rng, depth + 1, names) if rng.random() < 0.3 else {}
    if drawn < 0.65:
        return _odd_object(rng, depth, names)
    if drawn < 0.77:
        return _odd_array(rng, depth, names)
    if drawn < 0.90:
        parts = [_odd(rng, depth + 1, names) for _ in range(rng.randrange(1, 4))]
        return {rng.choice(["anyOf", "anyOf", "oneOf", "allOf"]): parts, **beside}
    if drawn < 0.98 and names:
        return {"$ref": "#/$defs/" + rng.choice(names), **rng.choice([{}, {}, {"description": "x"}, {"minimum": 1}])}
    return rng.choice([False, {"type": ["object", "null"], "properties": {"a": _odd_scalar(rng)}}, {"not": {}}])


def _odd_scalar(rng: random.Random) -> Any:
    kind = rng.choice(["string", "integer", "number", "boolean", "null", "enum", "const", "any", "either"])
    return {
        "string": {"type": "string", **rng.choice(_STRINGS)},
        "integer": {"type": "integer", **rng.choice(_NUMBERS)},
        "number": {"type": "number", **rng.choice(_NUMBERS)},
        "enum": {"enum": rng.sample(_VALUES, rng.randrange(1, 4)), **rng.choice([{}, {"type": "string"}])},
        "const": {"const": rng.choice(_VALUES)},
        "any": rng.choice([{}, True, {"description": "x"}]),
        "either": {"type": ["string", "null"], "maxLength": 3},
    }.get(kind, {"type": kind})


def _odd_array(rng: random.Random, depth: int, names: list[str]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array"}
    if rng.random() < 0.8:
        schema["items"] = _odd(rng, depth + 1, names)
    if rng.random() < 0.2:
        schema["prefixItems"] = [_odd(rng, depth + 1, names)]
    for bound in ("minItems", "maxItems"):
        if rng.random() < 0.5:
            schema[bound] = rng.randrange(3)
    return schema


def _odd_object(rng: random.Random, depth: int, names: list[str]) -> dict[str, Any]:
    listed = rng.sample(_NAMES, rng.randrange(4))
    schema: dict[str, Any] = {"type": "object"} if rng.random() < 0.9 else {}
    if listed:
        schema["properties"] = {name: _odd(rng, depth + 1, names) for name in listed}
    if rng.random() < 0.7:
        pool = listed + rng.sample(_NAMES, rng.random() < 0.2)
        schema["required"] = list(dict.fromkeys(rng.sample(pool, rng.randrange(len(pool) + 1))))
    others: dict[str, Any] = {}
    if rng.random() < 0.3:
        others["patternProperties"] = {rng.choice(_PATTERNS): _odd(rng, depth + 1, names)}
    if rng.random() < 0.5:
        # Beside patterns only False: llguidance lets a key with an escape (\\u29bf) pass by them.
        open_: list[Any] = [True, {}, {"type": "integer"}, {"type": "string", "maxLength": 3}]
        others["additionalProperties"] = rng.choice([False, *([] if others else open_)])
    for bound in ("minProperties", "maxProperties"):
        if rng.random() < 0.15:
            others[bound] = rng.randrange(4)
    return schema | others
