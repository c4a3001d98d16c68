from __future__ import annotations

import json
from typing import Any

import pytest

from djl_python.bench.traffic.differences import differences
from djl_python.bench.traffic.player import Played


def answer(body: Any, status: int = 200, kind: str = "application/json", **headers: str) -> Played:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Played(status, {"content-type": kind, **named}, json.dumps(body).encode())


def stream(*events: Any, kind: str = "text/event-stream") -> Played:
    if kind != "text/event-stream":
        return Played(200, {"content-type": kind}, b"".join(json.dumps(one).encode() + b"\n" for one in events))
    body = "".join(f"data: {one if isinstance(one, str) else json.dumps(one)}\n\n" for one in events)
    return Played(200, {"content-type": kind}, b": a comment\n\n" + body.encode())


def differences_of(first: Played, second: Played, **options: Any) -> list[str]:
    return [str(one) for one in differences(first, second, **options)]


def test_ids_and_times_are_not_compared() -> None:
    one = {"id": "a", "created": 1, "choices": [{"text": "x"}], "timings": {"total_time": 3.2, "prompt_ms": 1}}
    other = {"id": "b", "created": 2, "choices": [{"text": "x"}], "timings": {"total_time": 9.9, "prompt_ms": 7}}
    assert differences_of(answer(one), answer(other)) == []
    assert differences_of(answer({"id": "a"}), answer({})) == ['body.id: "a" | (nothing)']
    assert differences_of(answer({"token": {"id": 3}}), answer({"token": {"id": 4}})) == ["body.token.id: 3 | 4"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (answer({}), answer({}, 422), ["status: 200 | 422"]),
        (answer({}), answer({}, kind="application/json; charset=utf-8"), []),
        (answer({}), answer({}, kind="text/plain"), ['header content-type: "application/json" | "text/plain"']),
        (answer({}), answer({}, retry_after="1"), ['header retry-after: "" | "1"']),
        (answer({}), answer({}, x_request_id="1", date="now"), []),
        (answer({"a": {"b": [1, 2]}}), answer({"a": {"b": [1, 3]}}), ["body.a.b[1]: 2 | 3"]),
        (answer({"a": [1]}), answer({"a": [1, 2]}), ['body.a: "1 items" | "2 items"']),
        (answer({"a": True}), answer({"a": 1}), ["body.a: true | 1"]),
        (answer({"p": -0.50001}), answer({"p": -0.5}), []),
        (answer({"p": -0.6}), answer({"p": -0.5}), ["body.p: -0.6 | -0.5"]),
        (answer([]), Played(200, {"content-type": "application/json"}, b"text"), ['body: [] | "text"']),
        (Played(failure="ReadError: gone"), answer({}), ['no answer: "ReadError: gone" | ""']),
    ],
)
def test_places_are_named(first: Played, second: Played, expected: list[str]) -> None:
    assert differences_of(first, second) == [
        one.replace('"1 items"', "1 items").replace('"2 items"', "2 items") for one in expected
    ]


def test_streams_are_compared_event_by_event() -> None:
    one, other = ([{"d": {"text": text, "n": 1}} for text in texts] for texts in (("a", "b", "c"), ("a", "x", "y")))
    assert differences_of(stream(*one, "[DONE]"), stream(*other, "[DONE]")) == [
        'events[1].d.text: "b" | "x" (and at 1 more events)'
    ]
    assert differences_of(stream(*one, "[DONE]"), stream(*one)) == [
        "events: 4 | 3 (all their texts joined are the same)"
    ]
    lines = "application/jsonlines"
    assert differences_of(stream(*one, kind=lines), stream(*other, kind=lines)) == [
        'events[1].d.text: "b" | "x" (and at 1 more events)'
    ]


def test_other_pieces_of_one_text_are_told_as_such() -> None:
    one = [{"text": "ab"}, {"text": "c"}]
    assert differences_of(stream(*one), stream({"text": "a"}, {"text": "b"}, {"text": "c"})) == [
        "events: 2 | 3 (all their texts joined are the same)"
    ]
    assert differences_of(stream(*one), stream({"text": "a"}, {"text": "b"}, {"text": "x"})) == [
        "events: 2 | 3",
        'events[0].text: "ab" | "a" (and at 1 more events)',
    ]


def test_the_user_says_what_else_may_differ() -> None:
    one, other = answer({"model": "a", "n": 1}), answer({"model": "b", "n": 1})
    assert differences_of(one, other) == ['body.model: "a" | "b"']
    assert differences_of(one, other, ignored=["model"]) == []
