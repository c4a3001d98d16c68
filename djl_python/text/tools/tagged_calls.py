"""Tool calls whose arguments are texts between tags: Qwen 3 Coder's, GLM's and others'. Runs in the worker.

The tool's schema decides the type of a text: "5" is a number where a number is expected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from ...core.types import ToolUse
from .strict_json import strict
from .syntax import BlockParser

_FLAGS: Final = re.DOTALL
_QUOTED: Final = r"""["']?([^"'>]+)["']?"""


class TaggedParser(BlockParser):
    """Blocks with calls, each with texts by name."""

    #: A call: (name, arguments).
    call: ClassVar[re.Pattern[str]]
    #: An argument: (name, text).
    argument: ClassVar[re.Pattern[str]]
    #: Whether a call must name a known tool: for syntaxes in which a word alone is a call.
    only_known: ClassVar[bool] = False

    def __init__(self, use: ToolUse) -> None:
        super().__init__(use)
        self._schemas = {
            tool["function"]["name"]: _properties(tool["function"].get("parameters")) for tool in use.tools
        }

    def _calls_of(self, block: str) -> list[tuple[str, str]] | None:
        calls = [(call[1].strip(), call[2]) for call in self.call.finditer(self._opening + block)]
        if self.only_known and any(name not in self._names for name, _ in calls):
            return None
        return [(name, self._arguments(body, self._schemas.get(name, {}))) for name, body in calls]

    def _arguments(self, body: str, schemas: Mapping[str, Any]) -> str:
        values = {match[1].strip(): match[2] for match in self.argument.finditer(body)}
        parts = (f"{_string(name)}: {_value(text, schemas.get(name))}" for name, text in values.items())
        return "{" + ", ".join(parts) + "}"


class QwenXmlParser(TaggedParser):
    """`<tool_call>`, for each call `<function=name><parameter=x>1</parameter></function>`, `</tool_call>`.

    Qwen 3 Coder, which has been seen to leave the outer tags out.
    """

    blocks: ClassVar = {"<tool_call>": "</tool_call>", "<function=": "</function>"}
    markers = ("<tool_call>", "</tool_call>", "</function>", "</parameter>")
    call = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|\Z)", _FLAGS)
    argument = re.compile(r"<parameter=([^>\n]+)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", _FLAGS)


class SeedOssParser(QwenXmlParser):
    """Qwen's XML calls between `<seed:tool_call>` and `</seed:tool_call>`."""

    blocks: ClassVar = {"<seed:tool_call>": "</seed:tool_call>"}
    markers = ("<seed:tool_call>", "</seed:tool_call>", "</function>", "</parameter>")


class GlmParser(TaggedParser):
    """`<tool_call>name<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>`. GLM 4.5 to 4.7."""

    blocks: ClassVar = {"<tool_call>": "</tool_call>"}
    markers = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    call = re.compile(r"\A<tool_call>\s*([\w.-]+)\s*((?:<arg_key>.*)?)\Z", _FLAGS)
    argument = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)(?:</arg_value>|\Z)", _FLAGS)
    only_known = True


class MiniMaxM2Parser(TaggedParser):
    """`<minimax:tool_call>`, for each call `<invoke name="f"><parameter name="x">1</parameter></invoke>`."""

    blocks: ClassVar = {"<minimax:tool_call>": "</minimax:tool_call>"}
    markers = ("<minimax:tool_call>", "</minimax:tool_call>", "</invoke>", "</parameter>")
    call = re.compile(rf"<invoke name={_QUOTED}>(.*?)(?:</invoke>|\Z)", _FLAGS)
    argument = re.compile(rf"<parameter name={_QUOTED}>(.*?)(?:</parameter>|(?=<parameter name=)|\Z)", _FLAGS)


class Step3Parser(TaggedParser):
    """For each call `<steptml:invoke name="f"><steptml:parameter name="x">1</steptml:parameter></steptml:invoke>`."""

    blocks: ClassVar = {"<｜tool_calls_begin｜>": "<｜tool_calls_end｜>"}
    markers = (
        *("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", "<｜tool_call_begin｜>", "<｜tool_call_end｜>"),
        *("<｜tool_sep｜>", "</steptml:invoke>", "</steptml:parameter>"),
    )
    call = re.compile(rf"<steptml:invoke name={_QUOTED}>(.*?)(?:</steptml:invoke>|\Z)", _FLAGS)
    argument = re.compile(rf"<steptml:parameter name={_QUOTED}>(.*?)(?:</steptml:parameter>|\Z)", _FLAGS)


class FunctionGemmaParser(BlockParser):
    """`<start_function_call>call:name{x:<escape>a text<escape>,y:1}<end_function_call>`. FunctionGemma."""

    _CALL: Final = re.compile(r"call:([\w.-]+)(\{.*\})", _FLAGS)
    _TEXT: Final = re.compile(r"<escape>(.*?)<escape>", _FLAGS)
    blocks: ClassVar = {"<start_function_call>": "<end_function_call>"}
    markers = ("<start_function_call>", "<end_function_call>", "<escape>")

    def _calls_of(self, block: str) -> list[tuple[str, str]] | None:
        match = self._CALL.fullmatch(block)
        if match is None:
            return None
        return [(match[1], strict(self._TEXT.sub(lambda text: _string(text[1]), match[2])))]


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _value(text: str, schema: object) -> str:
    """The JSON that a text stands for, for a schema; a line break around it is no part of it."""
    text = text.removeprefix("\n").removesuffix("\n")
    types = _types(schema)
    if types is None:
        return text.strip() if _is_json(text) else _string(text)
    if types == {"string"} or not text.strip():
        return _string(text)
    value = strict(text)
    return value if "string" not in types or types & _types_of(value) else _string(text)


def _properties(parameters: object) -> Mapping[str, Any]:
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def _types(schema: object) -> set[str] | None:
    """The types that a schema allows; None: unknown."""
    if not isinstance(schema, Mapping):
        return None
    if isinstance(kinds := schema.get("type"), str | list):
        return {kinds} if isinstance(kinds, str) else set(map(str, kinds))
    if isinstance(values := schema.get("enum"), list) or "const" in schema:
        values = values if isinstance(values, list) else [schema["const"]]
        return set().union(*(_types_of(json.dumps(value)) for value in values))
    for name in ("anyOf", "oneOf"):
        if isinstance(members := schema.get(name), list):
            types = [_types(member) for member in members]
            return None if None in types else set().union(*(values for values in types if values is not None))
    return None


def _types_of(value: str) -> set[str]:
    """The types of a value in JSON."""
    named = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}.get(value[0])
    if named is not None:
        return {named}
    return {"number"} if set(value) & set(".eE") else {"number", "integer"}


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
