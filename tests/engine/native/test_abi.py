"""The table in program.h, the functions that make operations, and the kernels agree about what fields are for."""

from __future__ import annotations

import inspect
import itertools
import re
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from djl_python.engine.native.packing import EIGHT, EIGHT_BY_GROUP, FOUR, SAME, TWELVE
from djl_python.engine.native.program import operations, operations_attention, operations_experts, operations_states
from djl_python.engine.native.thread_pool import ACTIVATIONS, NORMS, Kind, Mode, Op

FOLDER: Final = Path(operations.__file__).parents[1]
PROGRAM: Final = (FOLDER / "program.h").read_text()
MODULES: Final = (operations, operations_attention, operations_experts, operations_states)

#: Files with code that several kinds share, beside those that the table names.
SHARED: Final = {
    "activations.h": [Kind.LINEAR],
    "float_linear.h": [Kind.LINEAR],
    "rope_kv_cache.h": [Kind.ATTEND],
    "prefetch.h": [Kind.ATTEND, Kind.LINEAR],
    "products.h": [Kind.LINEAR],
    "integer_linear.h": [Kind.LINEAR, Kind.EMBED],
    "rowwise.h": [Kind.HEADS],
    "panel_statistics.h": [Kind.LINEAR, Kind.PICK],
    "bf16_12bit.h": [Kind.LINEAR, Kind.EMBED],
}
#: What no function sets: the program tells it in each step.
TOLD_LATER: Final = {
    Kind.LINEAR: {"maxima", "sinks", "slopes"},
    Kind.PICK: {"kv_heads", "maxima", "out", "routed", "sinks", "slopes", "values"},
}


def fields() -> dict[str, str]:
    """Each name in `Op` of program.h, and the first name of the same field."""
    body = re.sub(r"//.*", "", PROGRAM.partition("struct Op {")[2].partition("\n};")[0])
    found: dict[str, str] = {}
    for union, alone in re.findall(r"union \{(.*?)\};|([^;{}]+);", body, re.S):
        lines = [line.strip() for line in (union or alone).split(";")]
        names = [name for line in lines for name in re.findall(r"(\w+)(?=,|$)", line)]
        found |= dict.fromkeys(names, names[0])
    return found


class Entry(NamedTuple):
    """What the table says about a kind."""

    file: str
    names: list[str]


def table() -> dict[Kind, Entry]:
    found: dict[Kind, Entry] = {}
    for line in PROGRAM[: PROGRAM.index("struct Op {")].splitlines():
        if begin := re.match(r"// k(\w+), (\w+\.h): ", line):
            kind = Kind[re.sub(r"(?<!^)(?=[A-Z])", "_", begin[1]).upper()]
            assert kind not in found
            found[kind] = Entry(begin[2], [])
        elif said := re.match(r"//   (\w+(?:, \w+)*): ", line):
            found[kind].names.extend(said[1].split(", "))
    return found


FIELDS: Final = fields()
TABLE: Final = table()


def makers() -> dict[str, Callable[..., Op]]:
    return {
        name: function
        for module in MODULES
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and typing.get_type_hints(function)["return"] is Op
    }


class Values:
    """Arguments of all types, each number another one; notes the number that each name stands for."""

    def __init__(self, mode: Mode, activation: str) -> None:
        self.numbers: dict[str, float] = {}
        self._mode, self._activation = mode, activation
        self._next = itertools.count(10)

    def of(self, function: Callable[..., Any]) -> dict[str, Any]:
        hints = typing.get_type_hints(function)
        return {name: self._value(name, hints[name]) for name in inspect.signature(function).parameters}

    def _value(self, name: str, kind: Any) -> Any:
        if isinstance(kind, types.UnionType):
            kinds = [each for each in typing.get_args(kind) if each is not types.NoneType]
            kind = next((each for each in kinds if issubclass(each, tuple)), kinds[0])
        if issubclass(kind, tuple):
            return kind(**self.of(kind))
        value, number = self._number(name, kind)
        assert name not in self.numbers
        self.numbers[name.rstrip("_")] = number
        return value

    def _number(self, name: str, kind: Any) -> tuple[Any, float]:
        if kind is str:
            return (
                (self._activation, ACTIVATIONS[self._activation]) if name == "activation" else ("layer", NORMS["layer"])
            )
        value = {bool: True, Mode: self._mode}.get(kind, next(self._next))
        return value, value


def variants() -> Iterator[Values]:
    """In some fields there is one thing or another."""
    for mode, activation in itertools.product(Mode, ("xielu", "clamped_swiglu")):
        yield Values(mode, activation)


def set_in(operation: Op) -> dict[str, float]:
    """The fields that are set, by the names of program.h, and their numbers."""
    numbers = {name.rstrip("_"): getattr(operation, name) for name, *_ in Op._fields_}
    return {name: number for name, number in numbers.items() if number and name != "kind"}


def test_fields_have_the_names_and_the_order_of_the_kernels() -> None:
    assert list(dict.fromkeys(FIELDS.values())) == [name.rstrip("_") for name, *_ in Op._fields_]


@pytest.mark.parametrize(
    ("enum", "names"),
    [
        ("Kind", [kind.name for kind in sorted(Kind)]),
        ("Mode", [mode.name for mode in sorted(Mode)]),
        ("NormKind", ["RMS", "LAYER", "COPY"]),
        ("Activation", [str(name).upper() for name in ACTIVATIONS]),
        ("WeightFormat", ["SAME", "TWELVE", "EIGHT", "FOUR", "EIGHT_BY_GROUP"]),
    ],
)
def test_numbers_have_the_order_of_the_kernels(enum: str, names: list[str]) -> None:
    body = re.search(rf"enum {enum} : int32_t \{{(.*?)\}}", PROGRAM, re.S)
    assert body is not None
    found = [re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper() for name in re.findall(r"k(\w+)", body[1])]
    assert found == [{"GELU": "GELU_ERF"}.get(name, name) for name in names]
    assert list(range(5)) == [SAME, TWELVE, EIGHT, FOUR, EIGHT_BY_GROUP]
    assert list(ACTIVATIONS.values()) == list(range(len(ACTIVATIONS)))
    assert list(NORMS.values()) == list(range(len(NORMS)))


def test_the_table_has_all_kinds_and_all_names() -> None:
    assert set(TABLE) == set(Kind)
    assert {name for entry in TABLE.values() for name in entry.names} | {"kind", "late"} == set(FIELDS)


def test_each_kind_has_one_function() -> None:
    made = [function(**Values(Mode.STORE, "silu").of(function)).kind for function in makers().values()]
    assert sorted(made) == sorted(Kind)


@pytest.mark.parametrize("name", makers())
def test_a_function_sets_what_the_table_says(name: str) -> None:
    function = makers()[name]
    arrived: set[str] = set()
    written: set[str] = set()
    for values in variants():
        operation = function(**values.of(function))
        there = set_in(operation)
        arrived |= {each for each, number in values.numbers.items() if there.get(FIELDS[each]) == number}
        written |= set(there)
    kind = Kind(operation.kind)
    assert arrived == set(values.numbers) <= set(TABLE[kind].names)
    assert written == {FIELDS[each] for each in TABLE[kind].names} - TOLD_LATER.get(kind, set())


def test_kernels_use_the_names_of_their_kinds() -> None:
    used: set[str] = set()
    for path in sorted((*FOLDER.glob("*.h"), *FOLDER.glob("*.cpp"))):
        code = re.sub(r"//.*|#include.*", "", path.read_text())
        found = set(re.findall(r"\b(?:op\.|attention\.|before->|ops\[\w+\]\.)(\w+)", code))
        used |= found
        kinds = [kind for kind, entry in TABLE.items() if entry.file == path.name] + SHARED.get(path.name, [])
        if kinds:
            assert found - {"kind", "late"} <= {name for kind in kinds for name in TABLE[kind].names}, path.name
    assert used == set(FIELDS)
