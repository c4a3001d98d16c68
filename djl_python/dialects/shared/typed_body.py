"""A whole JSON body of nested types: read, or refused with the path of the field, what was expected and what was found.

Runs in the worker. msgspec's errors are explained from the types themselves, at any depth, so that a bound is written
once: in the type. Where a type's generated description would confuse, `Meta(extra={"expected": ...})` replaces it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from ...config import ModelConfig
from ...core.errors import ParameterError, PayloadError
from .request_body import shown

T = TypeVar("T")

_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_PATH: Final = re.compile(r" - at (`key` in )?`\$([^`]*)`$")
_MISSING: Final = re.compile(r"^Object missing required field `([^`]+)`")
_SIMPLE: Final[dict[type, str]] = {
    inspect.BoolType: "true or false",
    inspect.DictType: "an object",
    inspect.StructType: "an object",
}


def read_body(body: dict[str, Any], into: type[T], payload: Collection[str] = (), *, strict: bool = True) -> T:
    """The body as an `into`, a struct.

    Args:
        payload: top-level fields that are the payload itself rather than parameters.
        strict: whether a string is nothing but a string; otherwise it may stand for a number or a boolean.

    Raises:
        PayloadError: a field of the payload is missing, has a wrong type or is out of range.
        ParameterError: another field is.
    """
    try:
        return msgspec.convert(body, into, str_keys=True, strict=strict)
    except msgspec.ValidationError as exc:
        field, message = _explain(body, into, str(exc))
        top_level = re.split(r"[.\[]", field, maxsplit=1)[0]
        raise (PayloadError if top_level in payload else ParameterError)(message, field) from exc


def unknown_fields(body: dict[str, Any], into: type, model: ModelConfig) -> list[str]:
    """The paths of the fields, at any depth, that `into` does not have and `read_body` ignored; nulls don't count.

    Raises:
        ParameterError: there are some, and option.unknown_parameters=error.
    """
    names = sorted(set(_known(into).unknown(body)))
    if names and model.option.unknown_parameters == "error":
        raise ParameterError(f"{names[0]}: no such field (option.unknown_parameters=error)", names[0])
    return names


@functools.cache
def _type_info(into: type) -> inspect.Type:
    return inspect.type_info(into)


# ------------------------------------------------------------------------------------------------ explaining


def _explain(body: Any, into: type, message: str) -> tuple[str, str]:
    """(field, message) for a message of msgspec's."""
    found = _PATH.search(message)
    path, entry, _ = (found[2] if found else "").partition("[...]")
    value, expected, at = body, _type_info(into), ""
    for name, index in _STEP.findall(path):
        expected = _item(expected) if index else _field(expected, name, value)
        at += f"[{index}]" if index else f".{name}"
        value = value[int(index)] if index else value.get(name)
    field = at.removeprefix(".")
    if missing := _MISSING.match(message):
        field = f"{field}.{missing[1]}".removeprefix(".")
        return field, f"{field}: required, expected {_describe(_field(expected, missing[1], value))}"
    if entry or (found and found[1]):
        # msgspec does not say which entry of a dictionary it was.
        (entries,) = (one for one in _alternatives(expected) if isinstance(one, inspect.DictType))
        each = f"each key {_describe(entries.key_type)}, each value {_describe(entries.value_type)}"
        return field, f"{field}: expected an object, {each}"
    return field, f"{field}: expected {_describe(expected)}, got {shown(value)}"


def _alternatives(type_: inspect.Type) -> tuple[inspect.Type, ...]:
    """The members of a union type, or the type itself, without `Metadata` wrappers."""
    if isinstance(type_, inspect.Metadata):
        return _alternatives(type_.type)
    if isinstance(type_, inspect.UnionType):
        return tuple(one for member in type_.types for one in _alternatives(member))
    return (type_,)


def _item(type_: inspect.Type) -> inspect.Type:
    return next(one.item_type for one in _alternatives(type_) if isinstance(one, inspect.ListType))


def _structs(type_: inspect.Type) -> list[inspect.StructType]:
    return [one for one in _alternatives(type_) if isinstance(one, inspect.StructType)]


def _field(type_: inspect.Type, name: str, value: Any) -> inspect.Type:
    """The type of a struct's field; for the tag field of a union, a literal of the possible tags."""
    structs = _structs(type_)
    tags = [struct.tag for struct in structs if struct.tag_field == name]
    if tags:
        return inspect.LiteralType(tuple(tags))
    return next(field.type for field in _struct_of(structs, value).fields if field.encode_name == name)


def _struct_of(structs: list[inspect.StructType], value: dict[str, Any]) -> inspect.StructType:
    """The struct of a tagged union that a value is an instance of."""
    if len(structs) == 1:
        return structs[0]
    return next(struct for struct in structs if struct.tag_field and value.get(struct.tag_field) == struct.tag)


def _describe(type_: inspect.Type) -> str:
    """A type in words, as they follow "expected"."""
    return _either(list(_words(type_)))


def _words(type_: inspect.Type) -> Iterator[str]:
    """The words for each alternative."""
    if isinstance(type_, inspect.Metadata):
        expected = (type_.extra or {}).get("expected")
        yield from _words(type_.type) if expected is None else (expected,)
    elif isinstance(type_, inspect.UnionType):
        structs = [one for one in type_.types if isinstance(one, inspect.StructType)]
        for one in type_.types:
            if one not in structs and not isinstance(one, inspect.NoneType):
                yield from _words(one)
        if len(structs) > 1:
            yield f"an object whose {structs[0].tag_field} is {_either([shown(one.tag) for one in structs])}"
        elif structs:
            yield "an object"
    elif isinstance(type_, inspect.LiteralType):
        yield from map(shown, type_.values)
    else:
        yield _word(type_)


def _word(type_: inspect.Type) -> str:
    if isinstance(type_, inspect.IntType | inspect.FloatType):
        what = "an integer" if isinstance(type_, inspect.IntType) else "a number"
        bounds = ((">=", type_.ge), (">", type_.gt), ("<=", type_.le), ("<", type_.lt))
        limits = " and ".join(f"{sign} {_plain(bound)}" for sign, bound in bounds if bound is not None)
        return f"{what} {limits}".rstrip()
    if isinstance(type_, inspect.StrType):
        if type_.pattern:
            return f"a string that matches {type_.pattern}"
        return _sized("a string", "characters", type_)
    if isinstance(type_, inspect.ListType):
        return f"{_sized('an array', 'items', type_)}, each item {_describe(type_.item_type)}"
    return _SIMPLE.get(type(type_), "a JSON value")


def _sized(what: str, of_what: str, type_: inspect.StrType | inspect.ListType) -> str:
    if type_.min_length:
        what = f"a non-empty {what.split()[1]}"
    return what if type_.max_length is None else f"{what} of at most {type_.max_length} {of_what}"


def _plain(bound: float) -> str:
    return str(int(bound) if bound == int(bound) else bound)


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


# ------------------------------------------------------------------------------------------------ unknown fields


class _Fields:
    """The names of a struct's fields, and a `_Known` for each field that holds structs itself."""

    def __init__(self, struct: inspect.StructType) -> None:
        self.names = frozenset({field.encode_name for field in struct.fields} | {struct.tag_field})
        nested = {field.encode_name: _Known.of(field.type) for field in struct.fields}
        self.nested = {name: known for name, known in nested.items() if known is not None}


class _Known:
    """The fields of a struct, or of a union of structs by their tag; or of arrays of such."""

    def __init__(self, structs: list[inspect.StructType]) -> None:
        self._tag_field = structs[0].tag_field if len(structs) > 1 else None
        self._fields = {struct.tag if self._tag_field else None: _Fields(struct) for struct in structs}

    @classmethod
    def of(cls, type_: inspect.Type) -> _Known | None:
        """The fields of a type; None if it has no structs."""
        items = [one.item_type for one in _alternatives(type_) if isinstance(one, inspect.ListType)]
        structs = [struct for one in (type_, *items) for struct in _structs(one)]
        return cls(structs) if structs else None

    def unknown(self, value: Any, at: str = "") -> Iterator[str]:
        """The paths, without indices, of the fields that the type does not have; `value` is a valid instance."""
        if isinstance(value, list):
            for item in value:
                yield from self.unknown(item, at)
        elif isinstance(value, dict):
            fields = self._fields[value[self._tag_field] if self._tag_field else None]
            for name in value.keys() - fields.names:
                if value[name] is not None:
                    yield f"{at}{name}"
            for name in fields.nested.keys() & value.keys():
                yield from fields.nested[name].unknown(value[name], f"{at}{name}.")


@functools.cache
def _known(into: type) -> _Known:
    known = _Known.of(_type_info(into))
    assert known is not None  # `into` is a struct
    return known
