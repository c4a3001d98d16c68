"""Finds a field of a large JSON object without parsing the object.

Used in the front end's event loop. Parsing 20 MB holds the interpreter for up to 60 ms, in another thread as well. The
search takes less than 3 ms for each window of the text, and others have their turn in between. It looks at strings and
brackets only: whether the text is JSON is found out by whoever parses it.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from itertools import accumulate
from typing import Final

import msgspec

from .json_windows import STRING, WINDOW, string_end, whole_part

#: Windows that contain fields of the object itself, which take longer for each byte, are so many times smaller.
_FINER: Final = 32
#: How many of those are looked at: fields of a real request's body fill a few.
_MOST_FINE: Final = 256
_TOKEN: Final = re.compile(rb'[{}\[\]:,]|"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_SPACE: Final = b" \t\r\n"
#: Leaves the brackets of a text alone, as bytes whose values are signed: 1 opens, -1 closes.
_STEPS: Final = bytes.maketrans(b"{[}]", b"\x01\x01\xff\xff")
_NO_BRACKETS: Final = bytes(sorted(set(range(256)) - set(b"{}[]")))


class UnclearError(Exception):
    """The text is not an object with a reasonable number of fields: only parsing shows what it is."""


def find_field(data: bytes, name: str, window: int = WINDOW) -> Generator[None, None, bytes | None]:
    """The JSON text of the value of an object's field: of the last one with this name, as parsers have it.

    Yields after each window. None: there is no such field.

    Args:
        window: bytes of one, 32 times the name's at least.

    Raises:
        UnclearError: see there.
    """
    return _Search(data, name, window).run()


class _Search:
    """One search. `_depth` counts the brackets that are open at `_at`; the object's own fields are at depth 1."""

    def __init__(self, data: bytes, name: str, window: int) -> None:
        self._data = data
        self._name = name
        self._window = window
        self._at = len(data) - len(data.lstrip(_SPACE)) if data[:1] in _SPACE else 0
        self._depth = 0
        self._is_named = False  # whether the last string of the object itself was the name
        self._value_at = -1  # where the value of the field begins, while it is read
        self._value: bytes | None = None

    def run(self) -> Generator[None, None, bytes | None]:
        data = self._data
        if data[self._at : self._at + 1] != b"{":
            raise UnclearError
        self._at += 1
        self._depth = 1
        fine_until = fine = 0
        while self._depth and self._at < len(data):
            is_fine = self._at < fine_until
            part = whole_part(data, self._at, self._window // _FINER if is_fine else self._window)
            if not part:
                yield from self._pass_string()
                continue
            if self._passed(part):
                pass
            elif not is_fine:
                fine_until = self._at + len(part)
            elif fine == _MOST_FINE:
                raise UnclearError
            else:
                fine += 1
                self._look_at(part)
            yield
        if self._depth:
            raise UnclearError
        return self._value

    def _pass_string(self) -> Generator[None, None, None]:
        """Go to the end of a string that is longer than a window."""
        end, is_whole = self._at + 1, False
        while not is_whole:
            if end >= len(self._data):
                raise UnclearError
            end, is_whole = string_end(self._data, end)
            yield
        self._at, self._is_named = end, False

    def _passed(self, part: bytes) -> bool:
        """Whether this part has nothing of the object itself, only of values inside; then it is done with."""
        steps = memoryview(STRING.sub(b"", part).translate(_STEPS, _NO_BRACKETS)).cast("b")
        if self._depth + min(accumulate(steps), default=0) < 2 or self._depth < 2:
            return False
        self._depth += sum(steps)
        self._at += len(part)
        return True

    def _look_at(self, part: bytes) -> None:
        """Find the field's name, or the end of its value."""
        for token in _TOKEN.finditer(part):
            kind = part[token.start()]
            if kind in b"{[":
                self._depth += 1
            elif kind in b"}]":
                self._depth -= 1
                if not self._depth:
                    self._end_value(self._at + token.start())
                    break
            elif self._depth > 1:
                continue
            elif kind in b'"':
                self._is_named = _text(token[0]) == self._name
            elif kind in b",":
                self._end_value(self._at + token.start())
            elif self._is_named:
                self._value_at, self._is_named = self._at + token.end(), False
        self._at += len(part)

    def _end_value(self, end: int) -> None:
        if self._value_at >= 0:
            self._value, self._value_at = self._data[self._value_at : end], -1


def _text(string: bytes) -> str | None:
    """What a JSON string says; None where it is not one."""
    try:
        return msgspec.json.decode(string, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
