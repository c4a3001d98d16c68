"""Describes a structure of the kernels as a class whose annotations are its fields. No torch."""

from __future__ import annotations

import ctypes
import inspect
from enum import IntEnum
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeVar, dataclass_transform, get_args, get_type_hints


class CType(NamedTuple):
    """The type of a field, as ctypes lays it out and as C++ names it, with `[..]` for the length of an array."""

    layout: type[Any]
    name: str


Int32 = Annotated[int, CType(ctypes.c_int32, "int32_t")]
Int64 = Annotated[int, CType(ctypes.c_int64, "int64_t")]
Flag = Annotated[bool, CType(ctypes.c_int32, "int32_t")]
Float = Annotated[float, CType(ctypes.c_float, "float")]
TwoUints = Annotated[Any, CType(ctypes.c_uint32 * 2, "uint32_t[2]")]

# Addresses: of what is read, and of what is written. Numbers without a format in the name are of the model's, or said.
In = Annotated[int, CType(ctypes.c_void_p, "const void*")]
InFloats = Annotated[int, CType(ctypes.c_void_p, "const float*")]
InBytes = Annotated[int, CType(ctypes.c_void_p, "const uint8_t*")]
InInts = Annotated[int, CType(ctypes.c_void_p, "const int32_t*")]
InUints = Annotated[int, CType(ctypes.c_void_p, "const uint32_t*")]
InLongs = Annotated[int, CType(ctypes.c_void_p, "const int64_t*")]
Out = Annotated[int, CType(ctypes.c_void_p, "void*")]
OutFloats = Annotated[int, CType(ctypes.c_void_p, "float*")]
OutBytes = Annotated[int, CType(ctypes.c_void_p, "uint8_t*")]
OutInts = Annotated[int, CType(ctypes.c_void_p, "int32_t*")]
OutUints = Annotated[int, CType(ctypes.c_void_p, "uint32_t*")]
OutLongs = Annotated[int, CType(ctypes.c_void_p, "int64_t*")]


class Struct(ctypes.Structure):
    """A structure of the kernels. Keyword arguments are its fields; those without a default must be given."""

    types: ClassVar[dict[str, CType]]
    defaults: ClassVar[dict[str, Any]]
    required: ClassVar[frozenset[str]]
    #: Those defaults that are not what memory holds anyway: zeros.
    nonzero_defaults: ClassVar[dict[str, Any]]

    def __init__(self, **values: Any) -> None:
        cls = type(self)
        if not cls.types.keys() >= values.keys() >= cls.required:
            odd = sorted((values.keys() | cls.defaults.keys()) ^ cls.types.keys())
            raise TypeError(f"{cls.__name__}: missing or unknown: {', '.join(odd)}")
        super().__init__(**{**cls.nonzero_defaults, **values})


S = TypeVar("S", bound=Struct)


@dataclass_transform(kw_only_default=True)
def structure(cls: type[S]) -> type[S]:
    """Lay out a class: its annotations, in their order, are the fields, and what they are set to the defaults."""
    hints = get_type_hints(cls, include_extras=True)
    cls.types = {name: ctype_of(hints[name]) for name in inspect.get_annotations(cls)}
    cls.defaults = {name: cls.__dict__[name] for name in cls.types if name in cls.__dict__}
    cls.required = frozenset(cls.types.keys() - cls.defaults.keys())
    cls.nonzero_defaults = {name: value for name, value in cls.defaults.items() if value}
    cls._fields_ = [(name, kind.layout) for name, kind in cls.types.items()]
    return cls


def ctype_of(annotation: Any) -> CType:
    """The type of a field with this annotation, which may be optional."""
    if isinstance(annotation, type):
        return CType(ctypes.c_int32 if issubclass(annotation, IntEnum) else annotation, annotation.__name__)
    arguments = get_args(annotation)
    return next((argument for argument in arguments if isinstance(argument, CType)), None) or ctype_of(arguments[0])


def member_name(field: str) -> str:
    """A field's name in C++: Python's, which has an underscore where it would be a keyword."""
    return field.rstrip("_")


#: The first fields of every operation.
_HEAD: Final = {"kind": ctypes.c_int32, "late": ctypes.c_int32}


class Operation(Struct):
    """An operation of a program. Each kind is a class with fields of its own, after these two.

    Attributes:
        kind: its number.
        late: 1: it works only on the rows whose logits are wanted, which a GatherOp has collected.
    """

    KIND: ClassVar[IntEnum]
    kind: int
    late: int
    _fields_ = tuple(_HEAD.items())

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.kind = self.KIND
