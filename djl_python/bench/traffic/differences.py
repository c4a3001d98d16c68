"""Compares two answers to one request: status, relevant headers, bodies path by path, streams event by event.

Pure functions. It skips values that differ between any two answers: string ids, times, durations and fingerprints
    (`VOLATILE`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ...formats.forms import media_type
from ...formats.json_framing import JSONLINES_TYPES, SSE
from .player import Played

#: Names of values that are not compared, and ends of such names.
VOLATILE: Final = frozenset("id created created_at request_id system_fingerprint timestamp".split())
VOLATILE_ENDS: Final = ("_time", "_ms", "_at")
#: Headers that change what a client does; only the media type of content-type.
HEADERS: Final = ("content-type", "content-encoding", "allow", "location", "retry-after", "www-authenticate")
_ABSENT: Final = "(nothing)"
_EVENT: Final = re.compile(r"^events\[\d+\]")
_LONGEST_SHOWN: Final = 120


@dataclass(frozen=True)
class Difference:
    """One path, and each answer's value there. `count`: in how many events of a stream."""

    path: str
    first: str
    second: str
    count: int = 1

    def __str__(self) -> str:
        more = f" (and at {self.count - 1} more events)" if self.count > 1 else ""
        return f"{self.path}: {self.first} | {self.second}{more}"


def differences(
    first: Played, second: Played, *, ignored: Collection[str] = (), tolerance: float = 1e-3
) -> list[Difference]:
    """Where they differ, in the order of a response.

    Args:
        ignored: names of values that are not compared, beside VOLATILE.
        tolerance: how far two numbers may be apart that are no integers, as a part of the larger one.
    """
    diffs = [
        Difference(path, _shown(one), _shown(other))
        for path, one, other in (
            ("no answer", first.failure, second.failure),
            ("status", first.status, second.status),
            *((f"header {name}", _header(first, name), _header(second, name)) for name in HEADERS),
        )
        if one != other
    ]
    if first.failure or second.failure:
        return diffs[:1]
    comparison = _Comparison(VOLATILE | set(ignored), tolerance)
    return diffs + list(comparison.bodies(first, second))


def _header(answer: Played, name: str) -> str:
    value = answer.headers.get(name, "")
    return media_type(value) if name == "content-type" else value


@dataclass(frozen=True)
class _Comparison:
    volatile: Collection[str]
    tolerance: float

    def bodies(self, first: Played, second: Played) -> Iterator[Difference]:
        one, other = _events(first), _events(second)
        if one is None or other is None:
            yield from self.values(_document(first.body), _document(second.body), "body")
            return
        if len(one) != len(other):
            same = _text(one) == _text(other)
            yield Difference("events", str(len(one)), f"{len(other)}{' (all their texts joined are the same)' * same}")
            if same:
                return
        pairs = enumerate(zip(one, other, strict=False))
        places = (place for at, (a, b) in pairs for place in self.values(a, b, f"events[{at}]"))
        yield from _by_place(places)

    def values(self, one: Any, other: Any, path: str) -> Iterator[Difference]:
        if isinstance(one, dict) and isinstance(other, dict):
            for name in dict.fromkeys((*one, *other)):
                a, b = one.get(name, _ABSENT), other.get(name, _ABSENT)
                if not self._is_volatile(name, a, b):
                    yield from self.values(a, b, f"{path}.{name}")
        elif isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                yield Difference(path, f"{len(one)} items", f"{len(other)} items")
            for at, (a, b) in enumerate(zip(one, other, strict=False)):
                yield from self.values(a, b, f"{path}[{at}]")
        elif not self._equal(one, other):
            yield Difference(path, _shown(one), _shown(other))

    def _is_volatile(self, name: str, one: Any, other: Any) -> bool:
        if _ABSENT in (one, other) and one != other:  # that it is there at all does not change by itself
            return False
        if name == "id" and not isinstance(one, str):  # a token's id is no volatile one
            return False
        return name in self.volatile or name.endswith(VOLATILE_ENDS)

    def _equal(self, one: Any, other: Any) -> bool:
        if isinstance(one, bool) or isinstance(other, bool):
            return one is other
        if isinstance(one, float) and isinstance(other, float):
            return math.isclose(one, other, rel_tol=self.tolerance)
        return bool(one == other)


def _by_place(places: Iterator[Difference]) -> Iterator[Difference]:
    """The first of the differences that are at one place of several events, and how many there are."""
    groups: dict[str, list[Difference]] = {}
    for place in places:
        groups.setdefault(_EVENT.sub("", place.path), []).append(place)
    for same in groups.values():
        yield Difference(same[0].path, same[0].first, same[0].second, len(same))


def _events(answer: Played) -> list[Any] | None:
    """The values of a stream's events or lines; None: the answer is no stream."""
    kind = media_type(answer.headers.get("content-type", ""))
    if kind == SSE:
        blocks = re.split(rb"\r?\n\r?\n", answer.body)
        data = (b"\n".join(re.findall(rb"^data: ?(.*?)\r?$", block, re.MULTILINE)) for block in blocks)
        return [_document(text) for text in data if text]
    if kind in JSONLINES_TYPES:
        return [_document(line) for line in answer.body.splitlines() if line.strip()]
    return None


def _document(body: bytes) -> Any:
    """A body as JSON; as text if it is not JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body.decode(errors="replace")


def _text(events: list[Any]) -> dict[str, str]:
    """All strings of events, joined by their places: of a stream's pieces, the whole text."""
    joined: dict[str, str] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                if name not in VOLATILE and name not in ("finish_reason", "object", "model", "role"):
                    walk(inner, f"{path}.{name}")
        elif isinstance(value, list):
            for at, inner in enumerate(value):
                walk(inner, f"{path}[{at}]")
        elif isinstance(value, str) and value != "[DONE]":
            joined[path] = joined.get(path, "") + value

    for event in events:
        walk(event, "")
    return {path: text for path, text in joined.items() if text}


def _shown(value: Any) -> str:
    """A value as JSON, cut where it is long."""
    text = value if value is _ABSENT else msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
