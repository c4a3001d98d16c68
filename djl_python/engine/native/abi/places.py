"""Where the fields of all structures lie, and whether loaded kernels agree. Engine process, once; no torch."""

from __future__ import annotations

import ctypes
from typing import Any

from .enums import ENUMS
from .operations import OPERATIONS, Op
from .step_inputs import RowSampling, StepInputs
from .structures import Operation, Struct, member_name


class _Place(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("offset", ctypes.c_uint64), ("size", ctypes.c_uint64))


def differences(kernels: ctypes.CDLL) -> list[str]:
    """Names of structures and enumerators, and of their members, that loaded kernels have otherwise."""
    kernels.djl_abi.restype = ctypes.POINTER(_Place)
    kernels.djl_abi.argtypes = [ctypes.POINTER(ctypes.c_int)]
    count = ctypes.c_int()
    found = kernels.djl_abi(ctypes.byref(count))
    theirs = {found[i].name.decode(): (found[i].offset, found[i].size) for i in range(count.value)}
    ours = places()
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


def structures() -> list[type[Struct]]:
    """All structures, each after those that it contains."""
    found: dict[type[Struct], None] = {}

    def add(cls: type[Struct]) -> None:
        nested: list[Any] = [kind.layout for kind in cls.types.values()]
        for each in nested:
            if issubclass(each, Struct):
                add(each)
        found.setdefault(cls)

    roots: tuple[type[Struct], ...] = (StepInputs, RowSampling, *OPERATIONS)
    for root in roots:
        add(root)
    return list(found)


def places() -> dict[str, tuple[int, int]]:
    """(offset, size) of each field, by `Structure.field`; size of each structure; value of each enumerator."""
    found: dict[str, tuple[int, int]] = {}
    for cls in structures():
        found[cls.__name__] = 0, ctypes.sizeof(cls)
        for field in _fields_of(cls):
            place = getattr(cls, field)
            found[f"{cls.__name__}.{member_name(field)}"] = place.offset, place.size
    found["Op"] = 0, ctypes.sizeof(Op)
    for enum in ENUMS:
        for each in enum:
            found[f"{enum.__name__}.{constant_name(each.name)}"] = each.value, ctypes.sizeof(ctypes.c_int32)
    return found


def constant_name(name: str) -> str:
    """The name in C++ of an enumerator or a constant."""
    return "k" + "".join(part.capitalize() for part in name.split("_"))


def _fields_of(cls: type[Struct]) -> list[str]:
    return [*(["kind", "late"] if issubclass(cls, Operation) else []), *cls.types]
