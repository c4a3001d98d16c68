"""Repairs models' JSON: an object or array, character by character. Runs in the worker.

Valid JSON passes unchanged. Models also write raw line breaks and lone backslashes in strings (a path, a regular
expression), quotes within quotes, Python's words, and leave commas, names' quotes or closing brackets out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_SPACE: Final = " \t\r\n"
_ESCAPES: Final = {char: f"\\{char}" for char in '"\\/bfnrt'}
_CLOSERS: Final = {"{": "}", "[": "]"}
_WORDS: Final = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
#: Begins no value, name or bracket, but text after an object that was not closed.
_STRAY: Final = "<"


def strict(text: str) -> str:
    """A whole text as JSON: an object, an array, a number or a word in its own right, else a string; "" stays ""."""
    text = text.strip()
    if not text.startswith(("{", "[")):
        return text and (_word(text) or json.dumps(text, ensure_ascii=False))
    made = StrictJson()
    written = []
    for char in text:
        written.append(made.feed(char))
        if made.done:
            break
    return "".join(written) + made.close()


class StrictJson:
    """Reads one object or array leniently, and writes it strictly.

    A quote ends its string only if what follows can follow a string; so the quote itself comes out one character later.

        >>> made = StrictJson()
        >>> "".join(map(made.feed, '{"path": "C:\\\\Users", big: True, }'))
        '{"path": "C:\\\\\\\\Users", "big": true }'

    Attributes:
        done: the value has ended; no more may be fed.
        stray: it ended before the last character, which is no part of it.
    """

    def __init__(self) -> None:
        self.done = self.stray = False
        self._state: Callable[[str], str] = self._value
        self._open: list[str] = []  # brackets
        self._empty = True  # whether nothing has begun yet in the innermost bracket
        self._held = ""  # a comma and white space, which come out if something follows; or what may end a string
        self._quote = ""
        self._names = False  # whether the current string or word is a name
        self._word = ""
        self._digits = ""

    def feed(self, char: str) -> str:
        """The output that this character makes certain."""
        return self._state(char)

    def close(self) -> str:
        """The missing end of the value: quotes, values of names, brackets."""
        if self.done:
            return ""
        return self._unfinished() + self._end_all()

    # ------------------------------------------------------------------------------------ states

    def _value(self, char: str) -> str:
        """A value begins: the whole, an array's element, or what a name stands for."""
        if char in _SPACE:
            return self._space(char)
        if char in "}],":
            missing = self._take_held() + "null" if self._open[-1] == "{" else ""
            self._state = self._between
            return missing + self._between(char)
        return self._begin(char, names=False)

    def _name(self, char: str) -> str:
        """A name begins, or the object ends."""
        if char in _SPACE:
            return self._space(char)
        if char == ":":  # a value without a name
            self._state, self._empty = self._value, False
            return self._take_held() + '"":'
        return self._between(char) if char in "}]," else self._begin(char, names=True)

    def _colon(self, char: str) -> str:
        if char in _SPACE:
            return char
        self._state = self._value
        return char if char == ":" else ":" + self._value(char)

    def _between(self, char: str) -> str:
        """After a value: a comma or a bracket; a comma may be missing."""
        if char in _SPACE:
            return self._space(char)
        if char == ",":
            if not self._empty and "," not in self._held:
                self._held += char
            self._state = self._name if self._open[-1] == "{" else self._value
            return ""
        if char in "}]":
            return self._end(char)
        if not self._empty and "," not in self._held:
            self._held = "," + self._held
        return self._begin(char, names=self._open[-1] == "{")

    def _string(self, char: str) -> str:
        if char == "\\":
            self._state = self._escape
            return ""
        if char == self._quote:
            self._state, self._held = self._quoted, char
            return ""
        return _in_string(char)

    def _quoted(self, char: str) -> str:
        """After a quote in a string: does it end the string?"""
        if char in _SPACE:
            self._held += char
            return ""
        ends = char in (",", "}", "]", _STRAY) or (char == ":" and self._names)
        if ends or (char == '"' and len(self._held) > 1):  # another string, without a comma before it
            space, self._held = self._held[1:], ""
            return '"' + space + self._after_value(char)
        held, self._held = self._held, ""
        self._state = self._string
        return "".join(map(_in_string, held)) + self._string(char)

    def _escape(self, char: str) -> str:
        self._state = self._string
        if char == "u":
            self._state, self._digits = self._unicode, ""
            return ""
        if char == "'":
            return char
        return _ESCAPES[char] if char in _ESCAPES else "\\\\" + self._string(char)

    def _unicode(self, char: str) -> str:
        if char not in "0123456789abcdefABCDEF":
            self._state = self._string
            return "\\\\u" + self._digits + self._string(char)
        self._digits += char
        if len(self._digits) < 4:
            return ""
        self._state = self._string
        return "\\u" + self._digits

    def _bare(self, char: str) -> str:
        """A number, a name of Python's or JSON's, or text without quotes."""
        if char not in _SPACE and char not in ",:}]" and char != _STRAY:
            self._word += char
            return ""
        return self._written() + self._after_value(char)

    # ------------------------------------------------------------------------------------ shared by the states

    def _begin(self, char: str, *, names: bool) -> str:
        if char == _STRAY:
            self.stray = True
            return self.close()
        before, self._names = self._take_held(), names
        self._empty = char in "{[" and not names
        if char in "{[" and not names:
            self._open.append(char)
            self._state = self._name if char == "{" else self._value
            return before + char
        if char in "\"'":
            self._quote, self._state = char, self._string
            return before + '"'
        self._word, self._state = char, self._bare
        return before

    def _after_value(self, char: str) -> str:
        self._state = self._colon if self._names else self._between
        return self._state(char)

    def _end(self, bracket: str) -> str:
        """Close the innermost object or array that this bracket closes, and what was left open in it."""
        opener = "{" if bracket == "}" else "["
        if opener not in self._open:
            return ""
        space, self._held = self._held.replace(",", ""), ""
        closed = ""
        while not closed.endswith(bracket):
            closed += _CLOSERS[self._open.pop()]
        self.done, self._empty = not self._open, False
        self._state = self._between
        return space + closed

    def _unfinished(self) -> str:
        """The missing end of the current value."""
        state, self._state = self._state, self._between
        if state in (self._string, self._escape, self._unicode, self._quoted):
            cut = {self._escape: "\\\\", self._unicode: f"\\\\u{self._digits}"}.get(state, "")
            self._held = ""
            return cut + ('": null' if self._names else '"')
        if state == self._bare:
            return self._written() + (": null" if self._names else "")
        if state == self._colon:
            return ": null"
        if state == self._value and self._open and self._open[-1] == "{":
            return self._take_held() + "null"
        return ""

    def _end_all(self) -> str:
        self._held, self.done = "", True
        closed = "".join(_CLOSERS[opener] for opener in reversed(self._open))
        self._open.clear()
        return closed

    def _space(self, char: str) -> str:
        if self._held:
            self._held += char
            return ""
        return char

    def _take_held(self) -> str:
        held, self._held = self._held, ""
        return held

    def _written(self) -> str:
        word, self._word = self._word, ""
        if self._names:
            return json.dumps(word, ensure_ascii=False)
        return _word(word) or json.dumps(word, ensure_ascii=False)


def _in_string(char: str) -> str:
    return char if char >= " " and char not in '"\\' else json.dumps(char)[1:-1]


def _word(word: str) -> str:
    """A number or a word of JSON's in its form, or ""; JSON has no infinities and no NaN: they are null."""
    if word in _WORDS:
        return _WORDS[word]
    if _NUMBER.fullmatch(word):
        return word
    with suppress(ValueError):
        return str(int(word))
    with suppress(ValueError):
        return json.dumps(value) if math.isfinite(value := float(word)) else "null"
    return ""
