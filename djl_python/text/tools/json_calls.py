"""Tool calls in JSON, as the model families mark them. Runs in the worker.

Once a text is certain to be a call, its arguments are passed on while they are generated.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import ClassVar, Final

from ...core.types import FinishReason, ToolCallDelta, ToolUse
from .call_reader import CallReader
from .parser import ParsedText, ToolParser
from .syntax import SyntaxParser


class JsonParser(SyntaxParser):
    """Calls that are JSON objects."""

    #: Whether an object is a call only if it names a known tool: for syntaxes that do not mark calls.
    only_known: ClassVar[bool] = False

    def __init__(self, use: ToolUse) -> None:
        super().__init__(use)
        self._reader = CallReader()
        self._reported = False
        self._after_call: Callable[[], bool] = self._begin

    def finish(self, reason: FinishReason) -> ParsedText:
        if self._reported and not self._reader.done and reason is FinishReason.EOS:
            self._reader.close()
            if rest := self._reader.take():
                self._calls.append(ToolCallDelta(self._calls_begun - 1, arguments=rest))
        return super().finish(reason)

    def _read(self, reader: CallReader, after: Callable[[], bool]) -> bool:
        """Read an object next; `after` is the state that follows it."""
        self._reader, self._reported, self._after_call = reader, False, after
        self._state = self._in_call
        return True

    def _in_call(self) -> bool:
        reader = self._reader
        self._hold(reader.feed(self._text))
        name = reader.name
        if reader.failed or (reader.certain and self.only_known and name not in self._names):
            return self._not_a_call()
        if self._reported:
            self._raw = ""
            if arguments := reader.take():
                self._calls.append(ToolCallDelta(self._calls_begun - 1, arguments=arguments))
        elif reader.certain and name is not None:
            self._reported = True
            self._call(name, reader.take())
        if reader.done:
            self._state = self._after_call
        return reader.done

    def _not_a_call(self) -> bool:
        """Release an object that was not a call, and go to the state after it."""
        self._among_calls = False
        self._release()
        self._state = self._begin
        return True

    def _item(self) -> bool:
        """The state between the objects of an array."""
        self._among_calls = self._calls_begun > 0
        if not self._skip_space():
            return False
        if self._text[0] == ",":
            self._hold(1)
            return True
        if self._text[0] == "]":
            self._hold(1)
            self._among_calls = False
            if self._calls_begun:
                self._raw = ""
            else:
                self._release()
            self._state = self._after_array
            return True
        return self._read(CallReader(), self._item)

    def _after_array(self) -> bool:
        return self._plain()


class HermesParser(JsonParser):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of times, between text. Hermes, Qwen."""

    starts: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    ends: ClassVar[tuple[str, ...]] = ("</tool_call>",)
    markers: tuple[str, ...] = ("<tool_call>", "</tool_call>")

    def __init__(self, use: ToolUse) -> None:
        super().__init__(use)
        self.marks = self.starts + self.ends

    def _begin(self) -> bool:
        self._among_calls = False
        return bool(self._begin_after(self.starts, self.ends)) and self._opened()

    def _opened(self) -> bool:
        """The state after a mark that begins a call."""
        return self._read(CallReader(), self._close)

    def _close(self) -> bool:
        self._among_calls = True
        # Qwen has been seen to write a brace too many, and DeepSeek V3 writes the end of a code block.
        self._text = self._text.lstrip(string.whitespace + "}]`")
        self._raw = ""
        if self._text.startswith("{"):  # another call: Qwen has been seen to write several between two tags
            return self._read(CallReader(), self._close)
        if end := next((mark for mark in self.ends if self._text.startswith(mark)), ""):
            self._text = self._text.removeprefix(end)
        elif not self._text or any(mark.startswith(self._text) for mark in self.ends):
            return False  # more of such characters may follow, or the rest of a mark
        self._state = self._begin
        return True


class LongCatParser(HermesParser):
    """Hermes' objects between `<longcat_tool_call>` and `</longcat_tool_call>`."""

    starts, ends = ("<longcat_tool_call>",), ("</longcat_tool_call>",)
    markers = starts + ends


class InternLmParser(HermesParser):
    """Hermes' objects between `<|action_start|><|plugin|>` and `<|action_end|>`. InternLM 2.5 and 3."""

    starts, ends = ("<|action_start|><|plugin|>",), ("<|action_end|>",)
    markers = ("<|action_start|>", "<|plugin|>", "<|action_end|>")


class Granite20bParser(HermesParser):
    """Hermes' objects after `<function_call>`. Granite 20B for function calling."""

    starts, ends = ("<function_call>",), ()
    markers = starts


class GigaChatParser(HermesParser):
    """Hermes' objects after `function call<|role_sep|>`; `<|message_sep|>` ends the content before. GigaChat 3."""

    starts, ends = ("<|message_sep|>\n\nfunction call<|role_sep|>", "function call<|role_sep|>"), ()
    markers = ("<|message_sep|>", "<|role_sep|>")


class Llama3JsonParser(JsonParser):
    """`{"name": ..., "parameters": {...}}` and nothing else, several with `;` between. Llama 3.1 to 4.

    `<|python_tag|>` may come before. An object that names no tool is an answer in JSON, not a call.
    """

    _TAG: Final = "<|python_tag|>"
    markers = (_TAG,)
    only_known = True

    def _begin(self) -> bool:
        if not self._skip_space():
            return False
        if self._text.startswith(self._TAG):
            self._hold(len(self._TAG))
            return True
        if self._TAG.startswith(self._text):
            return False
        return self._read(CallReader(), self._between)

    def _has_begun(self) -> bool:
        return super()._has_begun() or (self._state == self._in_call and self._reader.name in self._names)

    def _between(self) -> bool:
        self._text = self._text.lstrip(string.whitespace + ";,}]")
        self._raw = ""
        return bool(self._text) and self._read(CallReader(), self._between)

    def _not_a_call(self) -> bool:
        self._release()
        self._state = self._announced
        return True

    def _announced(self) -> bool:
        """The state after any other text: then only the tag begins a call."""
        if self._say_up_to(self._TAG):
            self._state = self._begin
            return True
        return False


class ForcedParser(JsonParser):
    """Calls that `tools.forced_calls` forces: one object, or an array of them.

    Args:
        call_id: makes ids in the form that the model's own syntax wants.
    """

    def __init__(self, use: ToolUse, call_id: Callable[[], str] = ToolParser.call_id) -> None:
        super().__init__(use)
        self._new_id = call_id

    def finish(self, reason: FinishReason) -> ParsedText:
        """End the text. An incomplete call without a name is not content, as no content was asked for."""
        if self._state != self._plain:
            self._raw = self._text = ""
        return super().finish(reason)

    def _begin(self) -> bool:
        if not self._skip_space():
            return False
        if self._text[0] == "[":
            self._hold(1)
            self._state = self._item
            return True
        return self._read(CallReader(), self._after_array)

    def _not_a_call(self) -> bool:
        super()._not_a_call()
        self._state = self._plain
        return True
