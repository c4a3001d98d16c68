"""What is said of a body that does not fit its type, made up here so as to reach every corner."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from djl_python.core import errors
from djl_python.dialects.shared.typed_body import read_body, unknown_fields
from tests.dialects.exchange import model


class Cat(msgspec.Struct, tag_field="kind", tag="cat"):
    lives: Annotated[int, Meta(ge=1, lt=10)] = 9


class Dog(msgspec.Struct, tag_field="kind", tag="dog"):
    name: str


class Collar(msgspec.Struct):
    colour: Literal["red", "blue"]


class Home(msgspec.Struct):
    pets: list[Cat | Dog]
    collar: Collar | None = None
    sizes: dict[str, Annotated[float, Meta(gt=0.5)]] | None = None
    open_: bool | None = msgspec.field(default=None, name="open")
    address: Annotated[str, Meta(min_length=1)] | None = None
    rooms: Annotated[list[int], Meta(min_length=1)] | None = None
    motto: Annotated[str, Meta(min_length=1, max_length=3)] | Annotated[list[str], Meta(max_length=2)] | None = None
    rent: Annotated[float | str, Meta(extra={"expected": "a price"})] | None = None
    anything: Any = None


CAT = {"kind": "cat"}


def test_a_body_that_fits_is_read() -> None:
    home = read_body({"pets": [CAT, {"kind": "dog", "name": "Rex"}], "open": True, "sizes": {"a": 1}}, Home)
    assert home == Home(pets=[Cat(), Dog("Rex")], open_=True, sizes={"a": 1.0})


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({}, "pets", 'required, expected an array, each item an object whose kind is "cat" or "dog"'),
        ({"pets": {}}, "pets", 'expected an array, each item an object whose kind is "cat" or "dog", got {}'),
        ({"pets": [7]}, "pets[0]", 'expected an object whose kind is "cat" or "dog", got 7'),
        ({"pets": [CAT, {}]}, "pets[1].kind", 'required, expected "cat" or "dog"'),
        ({"pets": [{"kind": "cow"}]}, "pets[0].kind", 'expected "cat" or "dog", got "cow"'),
        ({"pets": [{"kind": "dog"}]}, "pets[0].name", "required, expected a string"),
        ({"pets": [CAT | {"lives": 10}]}, "pets[0].lives", "expected an integer >= 1 and < 10, got 10"),
        ({"pets": [], "collar": {}}, "collar.colour", 'required, expected "blue" or "red"'),
        ({"pets": [], "collar": {"colour": 1}}, "collar.colour", 'expected "blue" or "red", got 1'),
        ({"pets": [], "sizes": []}, "sizes", "expected an object, got []"),
        (
            {"pets": [], "sizes": {"a": 0}},
            "sizes",
            "expected an object, each key a string, each value a number > 0.5",
        ),
        ({"pets": [], "open": 1}, "open", "expected true or false, got 1"),
        ({"pets": [], "address": ""}, "address", 'expected a non-empty string, got ""'),
        ({"pets": [], "rooms": []}, "rooms", "expected a non-empty array, each item an integer, got []"),
        (
            {"pets": [], "motto": "long"},
            "motto",
            "expected a non-empty string of at most 3 characters or an array of at most 2 items, each item a string, "
            'got "long"',
        ),
        (
            {"pets": [], "motto": ["a"] * 3},
            "motto",
            "expected a non-empty string of at most 3 characters or an array of at most 2 items, each item a string, "
            'got ["a","a","a"]',
        ),
        ({"pets": [], "rent": []}, "rent", "expected a price, got []"),
        (
            {"pets": [], "address": ["long"] * 50},
            "address",
            'expected a non-empty string, got ["long","long","long","long","long","long","long","long",...',
        ),
    ],
)
def test_a_body_that_does_not_fit_is_refused_with_its_path(body: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(errors.ParameterError) as caught:
        read_body(body, Home)
    assert (caught.value.field, caught.value.message) == (field, f"{field}: {message}")


def test_the_payload_has_an_error_of_its_own() -> None:
    with pytest.raises(errors.PayloadError):
        read_body({"pets": [7]}, Home, payload=("pets",))
    with pytest.raises(errors.ParameterError):
        read_body({"pets": [], "open": 1}, Home, payload=("pets",))


def test_fields_that_the_type_does_not_have_are_named() -> None:
    body = {"pets": [CAT | {"wings": 2}, CAT | {"wings": 1}], "garden": {"size": 1}, "none": None, "anything": {"x": 1}}
    assert unknown_fields(body, Home, model()) == ["garden", "pets.wings"]
    with pytest.raises(errors.ParameterError, match="garden: no such field"):
        unknown_fields(body, Home, model(unknown_parameters="error"))


class Counts(msgspec.Struct):
    count: Annotated[int, Meta(ge=1)]
    share: float = 0.5
    each: dict[str, list[int]] = {}


def test_an_integer_may_be_written_as_a_float() -> None:
    body = {"count": 28.0, "share": 1.0, "each": {"a": [1.0, 2]}}
    assert read_body(body, Counts) == Counts(28, 1.0, {"a": [1, 2]})
    assert body["count"] == 28.0 and isinstance(body["count"], float)


@pytest.mark.parametrize("count", [28.5, 0.0, 1e300, float("inf"), float("nan")])
def test_other_floats_are_no_integers(count: float) -> None:
    with pytest.raises(errors.ParameterError, match="count: expected an integer >= 1"):
        read_body({"count": count}, Counts)


def test_a_deeply_nested_body_with_a_float_is_read() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    assert read_body({"count": 2.0, "unknown": deep}, Counts).count == 2
