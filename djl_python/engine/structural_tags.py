"""A grammar after free text, as a structural tag of xgrammar: vLLM and TensorRT-LLM take one.

Runs in the engine process, without either.
"""

from __future__ import annotations

import json
from typing import Any

from ..core.types import FreeText, Grammar


def schema_of(grammar: Grammar) -> Any:
    """A JSON grammar's schema, as JSON values."""
    return {"type": "object"} if grammar.kind == "json_object" else json.loads(grammar.source)


def structural_tag(before: FreeText, grammar: Grammar) -> str:
    """The tag, as JSON text (tried with xgrammar 0.2.8)."""
    return json.dumps({"type": "structural_tag", "format": _format(before, grammar)})


def _format(before: FreeText, grammar: Grammar) -> dict[str, Any]:
    if grammar.kind == "regex":
        answer: dict[str, Any] = {"type": "regex", "pattern": grammar.source}
    elif grammar.kind == "gbnf":
        answer = {"type": "grammar", "grammar": grammar.source}
    else:
        answer = {"type": "json_schema", "json_schema": schema_of(grammar)}
    space = {"type": "regex", "pattern": r"\s*"}
    begins = [*before.starts, ""] if before.begun else before.starts
    free = [
        {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": list(before.ends)} for begin in begins
    ]
    whole = {"type": "sequence", "elements": [space, {"type": "or", "elements": free}, space, answer]}
    return whole if before.begun else {"type": "or", "elements": [answer, whole]}
