"""JSON schemas made up at random, for structured output."""

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
    found: dict[str, Any] = schemas[kind]
    return found
