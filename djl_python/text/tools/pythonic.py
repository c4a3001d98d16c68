"""Tool calls as Python calls: Llama 3.2's and 4's list, and the blocks of LFM2 and Olmo 3. Runs in the worker.

Calls are passed on when the list is complete, because only then can they be turned into JSON.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from ...core.types import ToolUse
from ..well_formed import well_formed
from .call_reader import CallReader
from .syntax import BlockParser, SyntaxParser

#: The name of a tool or an argument, which need not be one in Python: "get-weather", "from".
_NAME: Final = r"[^\W\d][\w.-]*"
#: The beginning of a list of calls, as far as it has come: "[", "[ get", "[get_weather", "[get_weather (" ...
_CALL_LIST: Final = re.compile(rf"\[\s*(?:({_NAME})\s*(\()?)?")
#: A string; one that does not end is all that is left, so that no quote in it is looked at again.
_STRING: Final = r""""(?:\\.|[^"\\])*(?:"|\\?\Z)|'(?:\\.|[^'\\])*(?:'|\\?\Z)"""
#: A string, or a name that is called or given a value.
_STRING_OR_NAME: Final = re.compile(rf"""(?P<string>{_STRING})|(?<![\w.-])(?P<name>{_NAME})(?=\s*[(=])""", re.DOTALL)
#: A string, or where one call ends and the next begins on a line of its own.
_STRING_OR_NEXT_CALL: Final = re.compile(rf"(?P<string>{_STRING})|\)[^\S\n]*\n\s*(?={_NAME}\s*\()", re.DOTALL)
_JSON_NAMES: Final = {"true": True, "false": False, "null": None}


class PythonicParser(SyntaxParser):
    """`[get_weather(city="Paris"), f()]` and nothing else. Llama 3.2 and 4.

    `<|python_start|>` and `<|python_end|>` may be around it. Arguments are Python's literals, or JSON's.
    """

    _START: Final = "<|python_start|>"
    _END: Final = "<|python_end|>"
    markers = (_START, _END)

    def __init__(self, use: ToolUse) -> None:
        super().__init__(use)
        self._depth = 0
        self._quote = ""
        self._escaped = False
        self._seen = 0

    def _begin(self) -> bool:
        if not self._skip_space():
            return False
        if self._text.startswith(self._START):
            self._hold(len(self._START))
            return True
        if self._text[0] == "[":
            self._state = self._in_list
            return True
        if self._START.startswith(self._text):
            return False
        return self._not_calls()

    def _in_list(self) -> bool:
        if not self._seen and not self._is_certain():
            return self._not_calls() if self._cannot_be() else False
        while self._seen < len(self._text):
            self._scan(self._text[self._seen])
            self._seen += 1
            if not self._depth:
                return self._close_list()
        return False

    def _is_certain(self) -> bool:
        """Whether the text begins with a call of a known tool."""
        match = _CALL_LIST.match(self._text)
        return bool(match and match[2] and match[1] in self._names)

    def _cannot_be(self) -> bool:
        match = _CALL_LIST.match(self._text)
        assert match is not None  # it begins with a bracket
        if match[2]:
            return True  # a call, but not of a known tool
        return match.end() < len(self._text)

    def _scan(self, char: str) -> None:
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == self._quote:
                self._quote = ""
        elif char in "\"'":
            self._quote = char
        elif char in "([{":
            self._depth += 1
        elif char in ")]}":
            self._depth -= 1

    def _close_list(self) -> bool:
        calls = _python_calls(self._text[: self._seen])
        self._hold(self._seen)
        if calls is None:
            return self._not_calls()
        for name, arguments in calls:
            self._call(name, arguments)
        self._state = self._after
        return True

    def _has_begun(self) -> bool:
        return super()._has_begun() or (self._state == self._in_list and self._is_certain())

    def _after(self) -> bool:
        self._among_calls = True
        if not self._skip_space():
            return False
        if self._text.startswith(self._END):
            self._hold(len(self._END))
            self._raw = ""
            self._state = self._plain
            return True
        if self._END.startswith(self._text):
            return False
        return self._not_calls()

    def _not_calls(self) -> bool:
        self._among_calls = False
        self._release()
        self._state = self._plain
        return True


class Lfm2Parser(BlockParser):
    """`<|tool_call_start|>[f(x=1), g()]<|tool_call_end|>`, or a JSON array if the prompt asks for one. LFM2, LFM2.5.

    Source: Liquid's documentation of tool use.
    """

    blocks: ClassVar = {"<|tool_call_start|>": "<|tool_call_end|>"}
    markers = ("<|tool_call_start|>", "<|tool_call_end|>")

    def _calls_of(self, block: str) -> list[tuple[str, str]] | None:
        return _python_calls(block) or _json_calls(block)


class Olmo3Parser(BlockParser):
    """`<function_calls>f(x=1)`, a line for each call, `</function_calls>`. Olmo 3.

    Source: the chat template of Olmo-3-7B-Instruct.
    """

    blocks: ClassVar = {"<function_calls>": "</function_calls>"}
    markers = ("<function_calls>", "</function_calls>")

    def _calls_of(self, block: str) -> list[tuple[str, str]] | None:
        listed = _STRING_OR_NEXT_CALL.sub(lambda match: match["string"] or "),", block)
        return _python_calls(f"[{listed}]")


def _json_calls(source: str) -> list[tuple[str, str]] | None:
    """Names and arguments of a JSON array of calls; None: `source` is something else."""
    calls: list[tuple[str, str]] = []
    rest = source.removeprefix("[")
    while rest := rest.lstrip(" \t\r\n,"):
        reader = CallReader()
        rest = rest[reader.feed(rest) :]
        if not reader.done or reader.name is None:
            return calls if rest == "]" else None
        calls.append((reader.name, reader.take()))
    return calls


def _python_calls(source: str) -> list[tuple[str, str]] | None:
    """Names and arguments (as JSON) of a list of calls; None: `source` is something else."""
    names: dict[str | None, str] = {}

    def as_python(match: re.Match[str]) -> str:
        if string := match["string"]:
            return string.replace("\r", "\\r").replace("\n", "\\n")
        stand_in = f"n{len(names)}"
        names[stand_in] = match["name"]
        return stand_in

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a pattern has "\d": the text is the model's, not a mistake in our source
            tree = ast.parse(_STRING_OR_NAME.sub(as_python, source), mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            return None
        return [_python_call(node, names) for node in tree.elts]
    except (SyntaxError, ValueError, TypeError, KeyError, RecursionError, MemoryError):
        return None


def _python_call(node: ast.expr, names: Mapping[str | None, str]) -> tuple[str, str]:
    """(name, arguments as JSON) of a call; `names` are those that stand-ins stand for.

    Raises:
        ValueError, KeyError: not a call, or its arguments are not all named literals.
    """
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError(f"not a tool call: {ast.unparse(node)}")
    arguments = {names[keyword.arg]: _literal(keyword.value) for keyword in node.keywords}
    return names[ast.unparse(node.func)], well_formed(json.dumps(arguments, ensure_ascii=False, allow_nan=False))


def _literal(node: ast.expr) -> Any:
    return ast.literal_eval(_JsonNames().visit(node))


class _JsonNames(ast.NodeTransformer):
    """Replaces JSON's true, false and null by Python's."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.copy_location(ast.Constant(_JSON_NAMES[node.id]), node) if node.id in _JSON_NAMES else node
