"""The offsets of all structures' fields, and the check that loaded kernels agree. Engine process, once; no torch."""

from __future__ import annotations

import ctypes
from typing import Any

from .enums import ENUMS
from .low_rank import LowRankPart
from .operations import OPERATIONS, Op
from .step_inputs import RowSampling, StepInputs
from .structures import Operation, Struct, member_name


class _Place(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("offset", ctypes.c_uint64), ("size", ctypes.c_uint64))


def differences(kernels: ctypes.CDLL) -> list[str]:
    """Names of structures, enumerators and members that differ in the loaded kernels."""
    kernels.djl_abi.restype = ctypes.POINTER(_Place)
    kernels.djl_abi.argtypes = [ctypes.POINTER(ctypes.c_int)]
    count = ctypes.c_int()
    places = kernels.djl_abi(ctypes.byref(count))
    theirs = {places[i].name.decode(): (places[i].offset, places[i].size) for i in range(count.value)}
    ours = field_offsets()
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


def structures() -> list[type[Struct]]:
    """All structures, in an order in which each follows its parts."""
    ordered: dict[type[Struct], None] = {}

    def add(cls: type[Struct]) -> None:
        nested: list[Any] = [kind.layout for kind in cls.types.values()]
        for each in nested:
            if issubclass(each, Struct):
                add(each)
        ordered.setdefault(cls)

    roots: tuple[type[Struct], ...] = (StepInputs, RowSampling, LowRankPart, *OPERATIONS)
    for root in roots:
        add(root)
    return list(ordered)


def field_offsets() -> dict[str, tuple[int, int]]:
    """(offset, size) of each field, by `Structure.field`; size of each structure; value of each enumerator."""
    offsets: dict[str, tuple[int, int]] = {}
    for cls in structures():
        offsets[cls.__name__] = 0, ctypes.sizeof(cls)
        for field in _fields_of(cls):
            place = getattr(cls, field)
            offsets[f"{cls.__name__}.{member_name(field)}"] = place.offset, place.size
    offsets["Op"] = 0, ctypes.sizeof(Op)
    for enum in ENUMS:
        for each in enum:
            offsets[f"{enum.__name__}.{constant_name(each.name)}"] = each.value, ctypes.sizeof(ctypes.c_int32)
    return offsets


def constant_name(name: str) -> str:
    """The name in C++ of an enumerator or a constant."""
    return "k" + "".join(part.capitalize() for part in name.split("_"))


def _fields_of(cls: type[Struct]) -> list[str]:
    return [*(["kind", "late"] if issubclass(cls, Operation) else []), *cls.types]
