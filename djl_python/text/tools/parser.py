"""Tool calls: finds a model's syntax, and makes the grammar of a forced call.

Runs in the worker. A `ToolParser` takes one generation's text in pieces and separates content from tool calls;
`syntax_of` finds the syntax of a model, `forced_calls` makes the grammar of a call that must happen.
"""

from __future__ import annotations

import abc
import json
import uuid
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ...core.registry import load_object, path_of
from ...core.types import FinishReason, Grammar, ToolCallDelta, ToolUse
from ...formats.json_schema import closed

#: option.tool_call_parser -> the class of the parser.
TOOL_PARSERS: Final = {
    "hermes": "djl_python.text.tools.json_calls:HermesParser",
    "qwen": "djl_python.text.tools.json_calls:HermesParser",
    **dict.fromkeys(("llama3_json", "llama4_json"), "djl_python.text.tools.json_calls:Llama3JsonParser"),
    "mistral": "djl_python.text.tools.json_lists:MistralParser",
    "granite": "djl_python.text.tools.json_lists:GraniteParser",
    "phi4_mini_json": "djl_python.text.tools.json_lists:Phi4MiniParser",
    "pythonic": "djl_python.text.tools.pythonic:PythonicParser",
    "llama4_pythonic": "djl_python.text.tools.pythonic:PythonicParser",
    "lfm2": "djl_python.text.tools.pythonic:Lfm2Parser",
    "olmo3": "djl_python.text.tools.pythonic:Olmo3Parser",
    "longcat": "djl_python.text.tools.json_calls:LongCatParser",
    "internlm": "djl_python.text.tools.json_calls:InternLmParser",
    "granite-20b-fc": "djl_python.text.tools.json_calls:Granite20bParser",
    "gigachat3": "djl_python.text.tools.json_calls:GigaChatParser",
    **dict.fromkeys(("jamba", "hunyuan_a13b", "minimax"), "djl_python.text.tools.json_lists:TaggedListParser"),
    **dict.fromkeys(("deepseek_v3", "deepseek_v31"), "djl_python.text.tools.named_calls:DeepSeekParser"),
    "kimi_k2": "djl_python.text.tools.named_calls:KimiK2Parser",
    **dict.fromkeys(("qwen3_coder", "qwen3_xml"), "djl_python.text.tools.tagged_calls:QwenXmlParser"),
    "seed_oss": "djl_python.text.tools.tagged_calls:SeedOssParser",
    **dict.fromkeys(("glm45", "glm47"), "djl_python.text.tools.tagged_calls:GlmParser"),
    "minimax_m2": "djl_python.text.tools.tagged_calls:MiniMaxM2Parser",
    "step3": "djl_python.text.tools.tagged_calls:Step3Parser",
    "functiongemma": "djl_python.text.tools.tagged_calls:FunctionGemmaParser",
}

#: A text in a chat template -> the syntax that it asks the model for. The first text found counts.
_SIGNS: Final = (
    ("<seed:tool_call>", "seed_oss"),
    ("<function=", "qwen3_coder"),
    ("<arg_key>", "glm45"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<steptml:invoke", "step3"),
    ("<longcat_tool_call>", "longcat"),
    ("<｜tool▁call▁begin｜>", "deepseek_v3"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<start_function_call>", "functiongemma"),
    ("function call<|role_sep|>", "gigachat3"),
    ("<|action_start|>", "internlm"),
    ("<function_call>", "granite-20b-fc"),
    ("<tool_calls>", "jamba"),
    # Granite 3.1's first template has a list after Hermes' tag; 4's is Hermes'.
    ("<tool_call> followed by a JSON list", "granite"),
    ("<tool_call>", "hermes"),
    ("<|tool_call|> followed by a JSON list", "granite"),
    ("<|/tool|>", "phi4_mini_json"),
    ("functools[", "phi4_mini_json"),
    ("<|tool_list_start|>", "lfm2"),
    ("<|tool_call_start|>", "lfm2"),
    ("List of tools: [", "lfm2"),
    ("<function_calls>", "olmo3"),
    ("[TOOL_CALLS]", "mistral"),
    ("[func_name1(", "pythonic"),
    # Llama 4's own template, which also puts content between <|python_start|> and <|python_end|>, asks for this.
    ('{"name": function name, "parameters":', "llama3_json"),
    ("<|python_start|>", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
)
_NO_PARAMETERS: Final[Mapping[str, Any]] = {"properties": {}}
#: Drafts of JSON Schema in which the id of a schema is not called `$id`.
_WITHOUT_IDS: Final = ("draft-03/schema", "draft-04/schema")


class ParsedText(NamedTuple):
    """The content and the pieces of calls in a piece of text."""

    content: str = ""
    calls: tuple[ToolCallDelta, ...] = ()


class ToolParser(abc.ABC):
    """Parses one generation. Text that only looked like a call is content; the syntax of calls is not.

    Args:
        use: the tools that may be called.
    """

    #: Special tokens that are part of the syntax: they are decoded even if special tokens are skipped.
    markers: tuple[str, ...] = ()

    @abc.abstractmethod
    def __init__(self, use: ToolUse) -> None: ...

    @abc.abstractmethod
    def feed(self, text: str) -> ParsedText:
        """Parse the next piece. How a text is cut into pieces makes no difference to the overall result."""

    @abc.abstractmethod
    def finish(self, reason: FinishReason) -> ParsedText:
        """End the text; returns the text that was held back.

        Arguments that the model left open become whole, unless a limit or a stop sequence cut them off. If a limit cut
        the text off, an incomplete call is not content.
        """

    @staticmethod
    def call_id() -> str:
        """A new call's id."""
        return f"call_{uuid.uuid4().hex[:24]}"


def tool_parser_class(name: str) -> type[ToolParser]:
    """The parser that `option.tool_call_parser` names.

    Raises:
        ConfigError: there is no such parser; the message lists the known ones.
    """
    parser: Any = load_object(tool_parser_path(name))
    return parser  # type: ignore[no-any-return]


def tool_parser_path(name: str) -> str:
    """The "module:attribute" of a parser, without importing it.

    Raises:
        ConfigError: the name is neither known nor such a path itself.
    """
    return path_of(TOOL_PARSERS, name, "option.tool_call_parser")


def syntax_of(template: str) -> str | None:
    """The name of the tool call syntax that a chat template asks for; None: no known syntax."""
    return next((name for sign, name in _SIGNS if sign in template), None)


def forced_calls(use: ToolUse) -> Grammar:
    """The grammar of an answer that must be a call: {"name", "arguments"}, or an array of them if several may be made.

    `use.choice` is "required" or "named"; a name that no tool has is for the dialect to refuse.
    """
    definitions: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    for index, tool in enumerate(use.callable):
        function = tool["function"]
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
    """A tool's arguments as a schema that can be embedded: with an `$id`, its references resolve from its own root.

    `name` becomes the id if the schema has none, or the same one as another tool's.
    """
    schema = {"$id": name, **closed(parameters), "type": "object"}
    if any(schema["$id"] == other["$id"] for other in others.values()):
        schema["$id"] = name
    if str(schema.get("$schema", "")).rstrip("#").endswith(_WITHOUT_IDS):
        del schema["$schema"]
    # Older drafts ignore keywords beside a `$ref`.
    if "$ref" in schema and isinstance(parts := schema.get("allOf", []), list):
        schema["allOf"] = [*parts, {"$ref": schema.pop("$ref")}]
    return schema
