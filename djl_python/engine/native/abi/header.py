"""Writes kernels/abi.h, the C++ side of this package's descriptions. Not in an engine: `__main__` and tests use it."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from .enums import CONSTANTS, ENUMS, Kind
from .low_rank import LowRankPart
from .operations import OPERATIONS
from .places import constant_name, field_offsets, structures
from .step_inputs import RowSampling, StepInputs
from .structures import Operation, Struct, member_name

HEADER: Final = Path(__file__).parents[1] / "kernels" / "abi.h"
_BEGIN: Final = """\
// What Python tells the kernels: operations, and what they are told in each step. Generated from native/abi, which says
// more; `python -m djl_python.engine.native.abi` writes it anew.

#pragma once

#include <cstddef>
#include <cstdint>

namespace djl {

"""


def header() -> str:
    """The text of kernels/abi.h."""
    parts = [_BEGIN]
    parts += [f"constexpr int {constant_name(name)} = {value};\n" for name, value in CONSTANTS.items()]
    parts += [f"constexpr int kKinds = {len(Kind)};\n\n"]
    for enum in ENUMS:
        names = textwrap.fill(", ".join(constant_name(each.name) for each in enum), 116, break_long_words=False)
        parts += [*_comment(enum), f"enum {enum.__name__} : int32_t {{\n{textwrap.indent(names, '    ')}\n}};\n\n"]
    parts += [f"struct {cls.__name__};\n" for cls in (StepInputs, RowSampling, LowRankPart)]
    for cls in structures():
        parts += ["\n", *_comment(cls), f"struct {cls.__name__} {{\n", *_members(cls), "};\n"]
    parts += [_OP]
    parts += [f"    {operation.__name__} {Kind(operation.KIND).name.lower()};\n" for operation in OPERATIONS]
    parts += ["};\n", *_table()]
    return "".join(parts)


_OP: Final = """
// What every operation begins with. A late one works only on the rows whose logits are wanted, which a GatherOp has
// collected.
struct OpHead {
    Kind kind;
    int32_t late;
};

// Any operation: its kind says which member it is.
union Op {
    OpHead head;
"""


def _members(cls: type[Struct]) -> Iterator[str]:
    if issubclass(cls, Operation):
        yield "    Kind kind;\n    int32_t late;\n"
    for name, kind in cls.types.items():
        type_name, _, length = kind.name.partition("[")
        yield f"    {type_name} {member_name(name)}{'[' + length if length else ''};\n"


def _comment(cls: type[Any]) -> Iterator[str]:
    """A class's docstring, in the names of C++."""
    names = r"\b(" + "|".join(_CPP_NAMES) + r")(?!\w)"
    text = re.sub(names, lambda name: _CPP_NAMES[name[1]], inspect.getdoc(cls) or "")
    yield from (f"// {line}".rstrip() + "\n" for line in text.splitlines())


_CPP_NAMES: Final = {"in_": "in", "None": "null"} | {
    name: constant_name(name) for name in (*CONSTANTS, *(each.name for enum in ENUMS for each in enum))
}


def _table() -> Iterator[str]:
    yield "\n// Where everything lies, for Python to compare: offset and size of fields, size of structures, numbers.\n"
    yield "struct AbiPlace {\n    const char* name;\n    uint64_t offset, size;\n};\n\n"
    yield "inline constexpr AbiPlace kAbiPlaces[] = {\n"
    for name in field_offsets():
        owner, _, member = name.partition(".")
        if not member:
            yield f'    {{"{name}", 0, sizeof({name})}},\n'
        elif member.startswith("k") and owner in {enum.__name__ for enum in ENUMS}:
            yield f'    {{"{name}", {member}, sizeof({owner})}},\n'
        else:
            yield f'    {{"{name}", offsetof({owner}, {member}), sizeof({owner}::{member})}},\n'
    yield "};\n\n}  // namespace djl\n"
