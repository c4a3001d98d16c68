"""References lead to schemas, however they are written; and to read a schema takes work in proportion to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from djl_python.formats.json_instances import Instances
from djl_python.formats.json_schema import check, closed
from tests.work import grows_in_proportion

NAME = "abcdefghijklmnop"


def spelled(number: int) -> str:
    """One of 65,536 ways to write the reference."""
    return "#/$defs/" + "".join(f"%{ord(c):02x}" if number >> bit & 1 else c for bit, c in enumerate(NAME))


@pytest.mark.parametrize(
    ("reference", "canonical"),
    [
        ("#/$defs/a b", "#/$defs/a b"),
        ("#/$defs/a%20b", "#/$defs/a%20b"),
        ("#/%24defs/%61%20b", "#/$defs/a%20b"),
        ("#/$defs/100%25", "#/$defs/100%25"),
        ("#/$defs/%31%300%25", "#/$defs/100%25"),
        ("#/$defs/%C3%A9", "#/$defs/%C3%A9"),
        ("#/%24defs/~1%7E0", "#/$defs/~1~0"),
        ("http://x/%61", "http://x/%61"),
    ],
)
def test_references_that_mean_the_same_have_one_spelling(reference: str, canonical: str) -> None:
    schema = {"$ref": reference, "$defs": {"a b": {}, "100%": {}, "\u00e9": {}, "/~": {}}}
    instances = Instances(schema)
    assert instances.canonical(reference) == canonical
    assert instances.at(canonical) is instances.at(reference)
    assert closed(schema)["$ref"] == canonical


def test_a_chain_of_references_is_followed_to_its_end() -> None:
    schema: dict[str, Any] = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/c"}, "c": {"const": 1}}}
    instances = Instances(schema)
    assert instances.followed({"$ref": "#/$defs/a"}) == {"const": 1}
    assert instances.followed(schema["$defs"]["b"]) == {"const": 1}
    circle = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    assert Instances(circle).followed(circle["$defs"]["a"]) in circle["$defs"].values()
    assert Instances({}).followed({"$ref": "#/$defs/a"}) is None


def node(name: str, *needed: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {f"{name}{one}": {"$ref": f"#/$defs/{one}"} for one in needed},
        "required": [f"{name}{one}" for one in needed],
    }


def one_in_many_spellings(size: int) -> dict[str, Any]:
    listed = {f"p{i}": {"$ref": spelled(i)} for i in range(size)}
    return {"$ref": spelled(0), "$defs": {NAME: {"type": "object", "properties": listed}}}


def chain(size: int) -> dict[str, Any]:
    nodes = {f"d{i}": node("x", f"d{i + 1}") for i in range(size)}
    return {"$ref": "#/$defs/d0", "$defs": nodes | {f"d{size}": {}}}


def chain_of_alternatives(size: int) -> dict[str, Any]:
    nodes = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(size)} | {f"d{size}": {"type": "string"}}
    return {"$defs": nodes, "oneOf": [{"$ref": f"#/$defs/d{i}"} for i in range(20)]}


def each_in_the_next(size: int) -> dict[str, Any]:
    """References to every level of a deep schema, in which each has all that are below it."""
    schema: dict[str, Any] = {}
    for _ in range(90):
        schema = {"a": schema}
    references = [{"$ref": "#/$defs" + "/a" * (i % 90)} for i in range(size)]
    return {"$defs": schema, "allOf": references}


def objects(size: int) -> dict[str, Any]:
    listed = {f"a{i}": {"type": "object", "minProperties": 1} for i in range(size)}
    return {"type": "object", "properties": listed, "required": [f"b{i}" for i in range(size)]}


def apart(size: int) -> dict[str, Any]:
    def kind(number: int) -> dict[str, Any]:
        values = [f"{number}-{i}" for i in range(size)]
        return {"type": "object", "properties": {"a": {"enum": values}}, "required": ["a"]}

    return {"oneOf": [kind(number) for number in range(20)]}


def together(size: int) -> dict[str, Any]:
    """Alternatives that share one value, so that each is compared with each."""
    schema = apart(size)
    for one in schema["oneOf"]:
        one["properties"]["a"]["enum"].append("same")
    return schema


def many_choices(size: int) -> dict[str, Any]:
    return {"properties": {f"a{i}": apart(2) for i in range(size // 5)}}


def nested(size: int) -> dict[str, Any]:
    deep: dict[str, Any] = {"properties": {"a": {}}}
    for _ in range(40):
        deep = {"anyOf": [deep]}
    return {"properties": {f"a{i}": deep | {"title": str(i)} for i in range(size // 5)}}


SCHEMAS: list[Callable[[int], dict[str, Any]]] = [
    *(one_in_many_spellings, chain, chain_of_alternatives, each_in_the_next, objects, apart, together, many_choices),
    nested,
]


@pytest.mark.parametrize("made", SCHEMAS, ids=lambda made: made.__name__)
def test_a_schema_takes_work_in_proportion_to_its_size(made: Callable[[int], dict[str, Any]]) -> None:
    def read(size: int) -> Callable[[], Any]:
        schema = made(size)

        def both() -> None:
            check(schema, "x")
            closed(schema)

        return both

    assert grows_in_proportion(read, 25)
