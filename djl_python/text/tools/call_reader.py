"""Reading one tool call in JSON as it streams. Runs in the worker, character by character, inside tool calls only."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from ..well_formed import well_formed
from .strict_json import StrictJson, strict

_SPACE: Final = " \t\r\n"
_ARGUMENTS: Final = ("arguments", "parameters")


class CallReader:
    """Reads `{"name": ..., "arguments": {...}}`: keys in any order, others skipped; the first of each kind counts.

    A certain call stays a call, because its beginning may have been passed on: it ends before text that can't be part
        of an object, such as text after an object that was not closed. The arguments that `take` gives are
    JSON as far as they have come, even where the model's are not quite.

    Attributes:
        name: the tool's name, once it is known.
        certain: whether this is a call, and not only something that begins like one.
        done: the object has ended.
        failed: this is not a call.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.done = self.failed = False
        self._stray = False  # whether the last character belongs to no object
        self._state: Callable[[str], None] = self._start
        self._after_value: Callable[[], None] = self._continue
        self._key = ""
        self._buffer: list[str] = []
        self._arguments: list[str] = []
        self._given = False  # whether any arguments have been seen
        self._written = StrictJson()
        self._depth = 0
        self._in_string = self._escaped = False

    @classmethod
    def of_arguments(cls, name: str) -> CallReader:
        """A reader of the arguments' object alone; the name was read before it."""
        self = cls()
        self.name, self._key = name, _ARGUMENTS[0]
        self._state = self._value_start
        self._after_value = self._finish
        return self

    @property
    def certain(self) -> bool:
        return self.name is not None and (self._given or self.done)

    def feed(self, text: str) -> int:
        """Consume the beginning of `text` that belongs to the object; the number of characters consumed.

        Once the object is done or has failed, no more text may be fed.
        """
        for position, char in enumerate(text):
            self._state(char)
            if self.done or self.failed:
                return position if self._stray else position + 1
        return len(text)

    def close(self) -> None:
        """End a call that its text did not end: arguments that were begun become whole."""
        if self._state == self._object:
            self._arguments.append(self._written.close())
            self._finish()

    def take(self) -> str:
        """The text of the arguments since the last call."""
        taken = "".join(self._arguments)
        self._arguments.clear()
        return taken

    # ------------------------------------------------------------------------------------ states

    def _start(self, char: str) -> None:
        if char == "{":
            self._state = self._key_start
        elif char not in _SPACE:
            self._fail()

    def _key_start(self, char: str) -> None:
        if char == '"':
            self._buffer = []
            self._state = self._key_text
        elif char == "}":
            self._finish()
        elif char not in _SPACE:
            self._fail()

    def _key_text(self, char: str) -> None:
        if not self._ends_string(char):
            self._buffer.append(char)
            return
        self._key = "".join(self._buffer)
        self._state = self._colon

    def _colon(self, char: str) -> None:
        if char == ":":
            self._state = self._value_start
        elif char not in _SPACE:
            self._fail()

    def _value_start(self, char: str) -> None:
        if char in _SPACE:
            return
        self._buffer = [char]
        if char == '"':
            self._state = self._string
        elif char in "{[" and self._key in _ARGUMENTS and not self._given:
            self._given, self._state = True, self._object
            self._object(char)
        elif char in "{[":
            self._depth, self._state = 1, self._container
        else:
            self._state = self._scalar

    def _string(self, char: str) -> None:
        self._buffer.append(char)
        if self._ends_string(char):
            self._complete()

    def _object(self, char: str) -> None:
        """In the arguments."""
        self._arguments.append(self._written.feed(char))
        if self._written.stray:
            self._fail()
        elif self._written.done:
            self._after_value()

    def _container(self, char: str) -> None:
        """In a value that is no argument."""
        if self._in_string:
            self._in_string = not self._ends_string(char)
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            if not self._depth:
                self._after_value()

    def _scalar(self, char: str) -> None:
        if char in ",}" or char in _SPACE:
            self._complete()
            if not (self.done or self.failed):
                self._state(char)
        else:
            self._buffer.append(char)

    def _next(self, char: str) -> None:
        if char == ",":
            self._state = self._key_start
        elif char == "}":
            self._finish()
        elif char not in _SPACE:
            self._fail()

    # ------------------------------------------------------------------------------------ shared by the states

    def _ends_string(self, char: str) -> bool:
        """Whether this character of a string is its closing quote."""
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        else:
            return char == '"'
        return False

    def _complete(self) -> None:
        """Handle a complete value that is neither object nor array."""
        try:
            value = json.loads("".join(self._buffer), strict=False, parse_constant=_refuse)
        except ValueError:
            self._fail()
            return
        if self._key == "name" and self.name is None:
            if not isinstance(value, str):
                self._fail()
                return
            self.name = well_formed(value)
        elif self._key in _ARGUMENTS and not self._given and value is not None:
            self._give(value)
        self._after_value()

    def _give(self, value: object) -> None:
        """Take a value that is neither object nor array as the arguments: it may be a text that holds JSON, as OpenAI
        sends them."""
        text = strict(well_formed(value)) if isinstance(value, str) else json.dumps(value)
        self._given = bool(text)
        self._arguments.append(text)

    def _continue(self) -> None:
        self._state = self._next

    def _fail(self) -> None:
        """End at a character that can't be here."""
        self._stray = True
        self.done, self.failed = self.certain, not self.certain

    def _finish(self) -> None:
        self.failed = self.name is None
        self.done = not self.failed
        if not self._given:
            self._arguments.append("{}")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
