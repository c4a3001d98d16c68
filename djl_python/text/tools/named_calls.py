"""Tool calls as a name and then its arguments in JSON: DeepSeek's and Kimi's. Runs in the worker."""

from __future__ import annotations

import re
from typing import ClassVar, Final

from ...core.types import ToolUse
from .call_reader import CallReader
from .json_calls import HermesParser

#: Longest name: longer text between a mark and the arguments is not a name.
_LONGEST_HEADER: Final = 256


class NamedCallParser(HermesParser):
    """Marks around all calls, and around each: there a name, and the arguments' object."""

    #: The text between the mark of all calls, or of one, and the arguments. Its groups: `name`, or `typed_name` after
    #: the kind of tool; perhaps `id`.
    header: ClassVar[re.Pattern[str]]

    def __init__(self, use: ToolUse) -> None:
        super().__init__(use)
        self._ids: set[str] = set()

    def _opened(self) -> bool:
        self._state = self._header
        return True

    def _header(self) -> bool:
        at = self._text.find("{")
        if at < 0:
            ended = any(mark in self._text for mark in self.ends) or len(self._text) > _LONGEST_HEADER
            return self._not_a_call() if ended else False
        match = self.header.fullmatch(self._text[:at])
        if match is None:
            return self._not_a_call()
        self._hold(at)
        groups = match.groupdict("")
        given = groups.get("id", "")
        own = given if given not in self._ids else ""
        self._ids.add(given)
        self._new_id = (lambda: own) if own else self.call_id
        return self._read(CallReader.of_arguments(groups["name"] or groups["typed_name"]), self._close)

    def _close(self) -> bool:
        self._new_id = self.call_id
        return super()._close()


class DeepSeekParser(NamedCallParser):
    """`<｜tool▁call▁begin｜>function<｜tool▁sep｜>name`, and the arguments in a code block: DeepSeek V3 and R1.

    Since V3.1, `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}`.
    """

    starts = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
    ends = ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
    markers = (*starts, *ends, "<｜tool▁sep｜>")
    header = re.compile(
        r"\s*(?:<｜tool▁call▁begin｜>)?\s*(?:function<｜tool▁sep｜>\s*(?P<typed_name>[\w.-]+)\s*(?:```(?:json)?)?|"
        r"(?P<name>[\w.-]+)\s*<｜tool▁sep｜>)\s*"
    )


class KimiK2Parser(NamedCallParser):
    """`<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`. Kimi K2.

    Its template takes a call back by the id that the model gave it: `functions.name:0`.
    """

    starts = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")
    ends = ("<|tool_call_end|>", "<|tool_calls_section_end|>")
    markers = (*starts, *ends, "<|tool_call_argument_begin|>")
    header = re.compile(
        r"\s*(?:<\|tool_call_begin\|>)?\s*(?P<id>(?:functions\.)?(?P<name>[\w.-]+):\d+)\s*"
        r"<\|tool_call_argument_begin\|>\s*"
    )
