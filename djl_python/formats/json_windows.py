"""Reads JSON text in windows: what of it is whole within so many bytes, and where a string ends.

Used in the worker, and in the front end for bodies that name a model. A window holds the interpreter for less than a
millisecond.
"""

from __future__ import annotations

import re
from typing import Final

#: Bytes looked at at once.
WINDOW: Final = 1 << 16
#: A string, or what a text has of one.
STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)', re.DOTALL)
#: Anything up to the beginning of a string that the window cuts.
_WHOLE: Final = re.compile(rb'(?:[^"]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_IN_STRING: Final = re.compile(rb"(?:[^\"\\]++|\\.)*+", re.DOTALL)


def whole_part(data: bytes, at: int, size: int = WINDOW) -> bytes:
    """What begins at `at`, outside of a string, and ends within `size` bytes, also outside of one.

    Empty where a string begins that is longer, or does not end.
    """
    whole = _WHOLE.match(data, at, at + size)
    assert whole is not None  # it matches nothing, too
    return whole[0]


def string_end(data: bytes, at: int) -> tuple[int, bool]:
    """How far the string goes on from `at`, within it, in a window; and whether it ends there, behind its quote."""
    inside = _IN_STRING.match(data, at, at + WINDOW)
    assert inside is not None  # as above
    end = inside.end()
    if data[end : end + 1] == b'"':
        return end + 1, True
    return (end if end > at else len(data)), False
