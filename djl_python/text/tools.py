"""Tool calls: which syntax a model writes them in, and how a call is forced.

Runs in the worker. A `ToolParser` takes one generation's text in pieces and separates what is said from what is
called; `syntax_of` finds the syntax of a model, `forced_calls` makes the grammar of a call that must happen.
"""

from __future__ import annotations

import abc
import json
import uuid
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ..json_schema import closed
from ..registry import load_object, path_of
from ..types import Grammar, ToolCallDelta, ToolUse

#: option.tool_call_parser -> who reads it.
TOOL_PARSERS: Final = {
    "hermes": "djl_python.text.tool_json:HermesParser",
    "qwen": "djl_python.text.tool_json:HermesParser",
    "llama3_json": "djl_python.text.tool_json:Llama3JsonParser",
    "mistral": "djl_python.text.tool_json:MistralParser",
    "pythonic": "djl_python.text.tool_pythonic:PythonicParser",
}

#: What a chat template says to its model -> the syntax it asks for. The first that is found counts; None is a syntax
#: that looks like another's and is not read here.
_SIGNS: Final[tuple[tuple[str, str | None], ...]] = (
    ("<function=", None),
    ("<arg_key>", None),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_start|>", "pythonic"),
    ("[func_name1(", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ('{"name": function name, "parameters":', "llama3_json"),
)
_NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}
#: Drafts that call the id of a schema something else.
_WITHOUT_IDS: Final = ("draft-03/schema", "draft-04/schema")


class Heard(NamedTuple):
    """What a piece of text was: said to the user, or a piece of a call."""

    content: str = ""
    calls: tuple[ToolCallDelta, ...] = ()


class ToolParser(abc.ABC):
    """Reads one generation. Nothing of a call's syntax shows in the content; what only looked like a call does.

    Args:
        use: the tools that may be called.
    """

    #: Special tokens that are part of the syntax: they are decoded although special tokens are not.
    markers: tuple[str, ...] = ()

    @abc.abstractmethod
    def __init__(self, use: ToolUse) -> None: ...

    @abc.abstractmethod
    def feed(self, text: str) -> Heard:
        """The next piece. How a text is cut into pieces makes no difference to what is heard in the end."""

    @abc.abstractmethod
    def finish(self) -> Heard:
        """There is no more: what was still held back."""

    @staticmethod
    def call_id() -> str:
        """A new call's id."""
        return f"call_{uuid.uuid4().hex[:24]}"


def tool_parser_class(name: str) -> type[ToolParser]:
    """The parser that `option.tool_call_parser` names.

    Raises:
        ConfigError: there is none; the message lists those that there are.
    """
    found: Any = load_object(tool_parser_path(name))
    return found  # type: ignore[no-any-return]


def tool_parser_path(name: str) -> str:
    """Its "module:attribute", which is not imported.

    Raises:
        ConfigError: it is neither known nor such a path itself.
    """
    return path_of(TOOL_PARSERS, name, "option.tool_call_parser")


def syntax_of(template: str) -> str | None:
    """The syntax that a chat template asks its model for, by name; None: none, or one that is not known here."""
    return next((name for sign, name in _SIGNS if sign in template), None)


def forced_calls(use: ToolUse) -> Grammar:
    """What an answer must be when a call must happen: {"name", "arguments"}, or an array of them if several may.

    `use.choice` is "required" or "named"; a name that no tool has is for the dialect to refuse.
    """
    definitions: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    for index, tool in enumerate(use.tools):
        function = tool["function"]
        if use.choice == "named" and function["name"] != use.name:
            continue
        key = f"tool{index}"
        definitions[key] = _resource(function.get("parameters") or _NO_PARAMETERS, f"tool://{key}/", definitions)
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": function["name"]}, "arguments": {"$ref": f"#/$defs/{key}"}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if use.choice == "required" and use.parallel:
        schema = {"type": "array", "items": schema, "minItems": 1}
    return Grammar("json_schema", json.dumps({**schema, "$defs": definitions}, ensure_ascii=False), field="tools")


def _resource(parameters: Mapping[str, Any], name: str, others: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A tool's arguments as a schema that may lie anywhere: where it has an id, its references count from its own root.

    `name` is for one without an id, or with that of one of the others.
    """
    schema = {"$id": name, **closed(parameters), "type": "object"}
    if any(schema["$id"] == other["$id"] for other in others.values()):
        schema["$id"] = name
    if str(schema.get("$schema", "")).rstrip("#").endswith(_WITHOUT_IDS):
        del schema["$schema"]
    # Older drafts read nothing that is beside a reference.
    if "$ref" in schema and isinstance(parts := schema.get("allOf", []), list):
        schema["allOf"] = [*parts, {"$ref": schema.pop("$ref")}]
    return schema
