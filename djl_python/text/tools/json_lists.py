"""Tool calls in a JSON array after a mark: Mistral's, Granite 3's, Phi-4-mini's and others'. Runs in the worker."""

from __future__ import annotations

import re
import secrets
import string
from typing import ClassVar, Final

from .call_reader import CallReader
from .json_calls import JsonParser


class ListParser(JsonParser):
    """A mark, then `[{"name": ..., "arguments": {...}}, ...]`, and perhaps a mark that ends it; any number of times.

    The array's brackets may be missing.
    """

    starts: ClassVar[tuple[str, ...]]
    ends: ClassVar[tuple[str, ...]] = ()

    def _begin(self) -> bool:
        if not (mark := self._begin_after(self.starts, self.ends)):
            return False
        self._state = self._item if mark.endswith("[") else self._open
        return True

    def _open(self) -> bool:
        if not self._skip_space():
            return False
        if self._text[0] == "[":
            self._hold(1)
            self._state = self._item
            return True
        if self._text[0] == "{":
            return self._read(CallReader(), self._item)
        return self._other()

    def _other(self) -> bool:
        """The state where neither an array nor an object follows the mark."""
        return self._not_a_call()

    def _after_array(self) -> bool:
        self._state = self._begin
        return True


class GraniteParser(ListParser):
    """`<|tool_call|>[...]`, in the first release of 3.1 `<tool_call>[...]`; `</tool_call>` may follow. Granite 3.

    Source: the chat templates of granite-3.1 to 3.3.
    """

    starts = ("<|tool_call|>", "<tool_call>")
    ends = ("</tool_call>", "<|/tool_call|>")
    markers = starts + ends


class Phi4MiniParser(ListParser):
    """`<|tool_call|>[...]<|/tool_call|>`, as the model's own template asks for it, or `functools[...]`. Phi-4-mini.

    Sources: the model's template, and vLLM's for it (tool_chat_template_phi4_mini.jinja).
    """

    starts = ("<|tool_call|>", "functools[")
    ends = ("<|/tool_call|>",)
    markers = ("<|tool_call|>", "<|/tool_call|>")
    marks = starts + ends


class TaggedListParser(ListParser):
    """`<tool_calls>[...]</tool_calls>`, or an object in each line there. Jamba, Hunyuan A13B; MiniMax M1."""

    starts, ends = ("<tool_calls>",), ("</tool_calls>",)
    markers = starts + ends


class MistralParser(ListParser):
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, and since v11 `[TOOL_CALLS]name[ARGS]{...}`."""

    _NAME: Final = re.compile(r"([\w.-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)")
    _NAME_SO_FAR: Final = re.compile(r"[\w.-]+(?:\[(?:[A-Z_]*\])?\w*)*\s*")
    _ID_ALPHABET: Final = string.ascii_letters + string.digits
    starts = ("[TOOL_CALLS]",)
    markers = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

    @staticmethod
    def call_id() -> str:
        """Nine letters and digits: Mistral's templates refuse anything else when the call comes back."""
        return "".join(secrets.choice(MistralParser._ID_ALPHABET) for _ in range(9))

    def _other(self) -> bool:
        if name := self._NAME.match(self._text):
            self._hold(name.end())
            return self._read(CallReader.of_arguments(name[1]), self._begin)
        if not self._NAME_SO_FAR.fullmatch(self._text):
            return self._not_a_call()
        return False
