"""What is JSON comes out as it is; whatever else is fed, JSON comes out."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from djl_python.text.tools.strict_json import StrictJson, strict


def written(text: str) -> str:
    """What becomes of a text, fed up to its end."""
    made, json_text = StrictJson(), ""
    for char in text:
        json_text += made.feed(char)
        if made.done:
            return json_text
    return json_text + made.close()


def random_value(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.randrange(8 if depth < 3 else 6)
    if kind == 6:
        return [random_value(draw, depth + 1) for _ in range(draw.randrange(4))]
    if kind == 7:
        return {random_text(draw): random_value(draw, depth + 1) for _ in range(draw.randrange(4))}
    return [None, True, False, draw.randrange(-50, 50), draw.random() * 1e9, random_text(draw)][kind]


def random_text(draw: random.Random) -> str:
    return "".join(draw.choices("ab\"\\/\n\t\x00é😀{}[]:, <'u0", k=draw.randrange(8)))


@pytest.mark.parametrize("seed", range(200))
def test_json_stays_as_it_is(seed: int) -> None:
    draw = random.Random(seed)
    for value in ([random_value(draw)], {random_text(draw): random_value(draw)}):
        for text in (
            json.dumps(value),
            json.dumps(value, ensure_ascii=False, indent=1),
            json.dumps(value, separators=(",", ":")),
        ):
            assert written(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"path": "C:\\Users", big: True,}', {"path": "C:\\Users", "big": True}),
        ('{"a": "x\ny\tz\x01"}', {"a": "x\ny\tz\x01"}),
        (r'{"a": "\d+\.\u12 \u00e9 \""}', {"a": '\\d+\\.\\u12 é "'}),
        ('{"a": "He said "hi" to me"}', {"a": 'He said "hi" to me'}),
        ("{'it': 'isn\\'t \"so\"'}", {"it": 'isn\'t "so"'}),
        ('{"a": 1 "b": 2}', {"a": 1, "b": 2}),
        ('{"a": "x"\n "b": ["y" "z"]}', {"a": "x", "b": ["y", "z"]}),
        ('{"a": "it\\\'s"}', {"a": "it's"}),
        ("[1\u0662, 0012345678901234567890, +7]", [12, 12345678901234567890, 7]),
        ('{a 1, "b":, "c"}', {"a": 1, "b": None, "c": None}),
        ('{,"a": 1,, "b": [,1,,2,],}', {"a": 1, "b": [1, 2]}),
        ('{"a": [1, {"b": 2}', {"a": [1, {"b": 2}]}),
        ('{"a": [1, 2}', {"a": [1, 2]}),
        ('{"a": 1]}', {"a": 1}),
        ("{a: .5, b: +1, c: 07, d: 1., e: -0, f: 1e3}", {"a": 0.5, "b": 1, "c": 7, "d": 1.0, "e": 0, "f": 1000.0}),
        ("[NaN, Infinity, -inf, undefined]", [None, None, None, "undefined"]),
        ("{: 1}", {"": 1}),
        ('{"a": "x', {"a": "x"}),
        ('{"a": "x\\', {"a": "x\\"}),
        ('{"a": "\\u00', {"a": "\\u00"}),
        ('{"a": "x"', {"a": "x"}),
        ('{"a', {"a": None}),
        ('{"a":', {"a": None}),
        ("{a", {"a": None}),
        ('{"a": tru', {"a": "tru"}),
        ('{"a": 1, ', {"a": 1}),
        ("[", []),
    ],
)
def test_relaxed_json_of_models_becomes_json(text: str, expected: Any) -> None:
    assert json.loads(written(text)) == expected


@pytest.mark.parametrize(
    "text", ['{"a": 1</tool_call>', '{"a": "x"</tool_call>', '{"a"</x', '{"a": </x', "{</x", '{"a": 1,</x']
)
def test_the_text_after_an_object_that_was_not_closed_is_no_part_of_it(text: str) -> None:
    made = StrictJson()
    json_text = "".join(made.feed(char) for char in text[: text.index("<")])
    json_text += made.feed("<")
    assert made.done and made.stray
    assert "a" in json.loads(json_text) or text == "{</x"


@pytest.mark.parametrize("seed", range(300))
def test_any_text_becomes_json(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(20):
        text = draw.choice("{[") + "".join(draw.choices("{}[]:,\"'\\ \n<a1.-tuNé", k=draw.randrange(14)))
        json.loads(written(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", ""), (" 15 ", "15"), ("null", "null"), ("so be it", '"so be it"'), ('{"a": 1} x', '{"a": 1}'), ("[1", "[1]")],
)
def test_a_whole_text_becomes_one_value(text: str, expected: str) -> None:
    assert strict(text) == expected
