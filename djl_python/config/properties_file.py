"""Java's .properties syntax, with line numbers.

Runs in the front end. As java.util.Properties reads it: `#` and `!` begin comments, a key ends at the first unescaped
`=`, `:` or blank, a backslash at the end of a line continues it, and backslash escapes include `\\uXXXX`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..core.errors import ConfigError

_KEY = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.?)", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class PropertyEntry(NamedTuple):
    """A setting's text and where it was found, e.g. "serving.properties:3"."""

    value: str
    source: str


def read_properties(path: Path) -> tuple[dict[str, PropertyEntry], list[str]]:
    """The entries of a file and warnings about keys that it sets twice (the last one counts, as in Java).

    Raises:
        ConfigError: unreadable, not UTF-8, or a malformed escape.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: not UTF-8 text (byte {exc.start})") from exc
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}") from exc
    entries: dict[str, PropertyEntry] = {}
    warnings = []
    for line, key, value in parse_properties(text, path.name):
        source = f"{path.name}:{line}"
        if key in entries:
            warnings.append(f"{source}: {key} replaces the one of {entries[key].source}")
        entries[key] = PropertyEntry(value, source)
    return entries, warnings


def parse_properties(text: str, file_name: str = "properties") -> Iterator[tuple[int, str, str]]:
    """(line, key, value) of each property; a continued line has the number of its first one.

    Raises:
        ConfigError: a malformed \\uXXXX escape.
    """
    for number, line in _logical_lines(text):
        raw_key = _match(_KEY, line, 0)
        start = len(raw_key) + len(_match(_SEPARATOR, line, len(raw_key)))
        try:
            yield number, _unescape(raw_key), _unescape(line[start:])
        except ValueError as exc:
            raise ConfigError(f"{file_name}:{number}: {exc}") from None


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments and leading blanks, continuations joined, with the number of their first line."""
    joined, first = "", 0
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = natural.lstrip(" \t\f")
        if not first:
            if not line or line[0] in "#!":
                continue
            first = number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            joined += line[:-1]
            continue
        yield first, joined + line
        joined, first = "", 0
    if first:
        yield first, joined


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        code = match[1]
        if len(code) == 5:
            return chr(int(code[1:], 16))
        if code == "u":
            raise ValueError(f"malformed escape {text[match.start() : match.start() + 6]!r}; expected \\uXXXX")
        return _CONTROLS.get(code, code)

    # Java's characters are UTF-16: a pair of surrogate escapes is one character.
    return _ESCAPE.sub(replace, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _match(pattern: re.Pattern[str], text: str, start: int) -> str:
    match = pattern.match(text, start)
    return match[0] if match else ""
