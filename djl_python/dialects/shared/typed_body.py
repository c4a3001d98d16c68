"""Reads a JSON body as nested types, or refuses it with the path of the field, the expected and the given value.

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
from .request_body import first_names, shown

T = TypeVar("T")

_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_PATH: Final = re.compile(r" - at (`key` in )?`\$([^`]*)`$")
_MISSING: Final = re.compile(r"^Object missing required field `([^`]+)`")
#: Larger numbers are no integers for msgspec either.
#: The tag of a union's struct that stands for all tags but the others', and how errors call it.
OTHER_TAG: Final = "*"
_OTHER: Final = "another"
_ABOVE_INTEGERS: Final = 2**63
_SIMPLE: Final[dict[type, str]] = {
    inspect.BoolType: "true or false",
    inspect.StructType: "an object",
}


def read_body(body: dict[str, Any], into: type[T], payload: Collection[str] = (), *, strict: bool = True) -> T:
    """The body as an `into`, a struct.

    Args:
        payload: top-level fields that are the payload itself rather than parameters.
        strict: whether a string is nothing but a string; otherwise it may stand for a number or a boolean.

    An integer may be written as 28.0.

    Raises:
        PayloadError: a field of the payload is missing, has a wrong type or is out of range.
        ParameterError: another field is.
    """
    try:
        try:
            return msgspec.convert(body, into, str_keys=True, strict=strict)
        except msgspec.ValidationError as exc:
            if "got `float`" not in str(exc):
                raise
            body = _with_integers(body)
            return msgspec.convert(body, into, str_keys=True, strict=strict)
    except msgspec.ValidationError as exc:
        field, message = _explain(body, into, str(exc))
        top_level = re.split(r"[.\[]", field, maxsplit=1)[0]
        raise (PayloadError if top_level in payload else ParameterError)(message, field) from exc


def _with_integers(body: dict[str, Any]) -> dict[str, Any]:
    """A copy in which 28.0 is 28: one number in JSON Schema, and in languages where all numbers are floats."""
    copy = dict(body)
    pending: list[dict[str, Any] | list[Any]] = [copy]  # no recursion: a body may be nested deeply
    while pending:
        at: Any = pending.pop()
        for key, value in list(at.items() if isinstance(at, dict) else enumerate(at)):
            if isinstance(value, float) and value.is_integer() and abs(value) < _ABOVE_INTEGERS:
                at[key] = int(value)
            elif isinstance(value, dict | list):
                at[key] = value.copy()
                pending.append(at[key])
    return copy


def unknown_fields(body: dict[str, Any], into: type, model: ModelConfig) -> list[str]:
    """The paths of the fields, at any depth, that `into` does not have and `read_body` ignored, at most
    `IGNORED_NAMES`; nulls don't count.

    Raises:
        ParameterError: there are some, and option.unknown_parameters=error.
    """
    names = first_names(set(_known(into).unknown(body)))
    if names and model.option.unknown_parameters == "error":
        raise ParameterError(f"{names[0]}: no such field (option.unknown_parameters=error)", names[0])
    return names


@functools.cache
def _type_info(into: type) -> inspect.Type:
    return inspect.type_info(into)


# ------------------------------------------------------------------------------------------------ explaining


def _explain(body: Any, into: type, message: str) -> tuple[str, str]:
    """(field, message) for a message of msgspec's."""
    match = _PATH.search(message)
    path, entry, _ = (match[2] if match else "").partition("[...]")
    value, expected, at = body, _type_info(into), ""
    for name, index in _STEP.findall(path):
        expected = _item(expected) if index else _field(expected, name, value)
        at += f"[{index}]" if index else f".{name}"
        value = value[int(index)] if index else value.get(name)
    field = at.removeprefix(".")
    if missing := _MISSING.match(message):
        field = f"{field}.{missing[1]}".removeprefix(".")
        return field, f"{field}: required, expected {_describe(_field(expected, missing[1], value))}"
    if entry or (match and match[1]):
        # msgspec does not say which entry of a dictionary it was.
        (entries,) = (
            alternative for alternative in _alternatives(expected) if isinstance(alternative, inspect.DictType)
        )
        each = f"each key {_describe(entries.key_type)}, each value {_describe(entries.value_type)}"
        return field, f"{field}: expected an object, {each}"
    return field, f"{field}: expected {_describe(expected)}, got {_shown_value(value, expected)}"


def _shown_value(value: Any, expected: inspect.Type) -> str:
    """An unexpected value for a message; for a list with too many items, their number."""
    text = shown(value)
    limits = [
        most
        for alternative in _alternatives(expected)
        if (most := getattr(alternative, "max_length", None)) is not None
    ]
    too_many = isinstance(value, list | dict) and bool(limits) and len(value) > min(limits)
    return f"{len(value)} items" if too_many and text.endswith("...") else text


def _alternatives(type_: inspect.Type) -> tuple[inspect.Type, ...]:
    """The members of a union type, or the type itself, without `Metadata` wrappers."""
    if isinstance(type_, inspect.Metadata):
        return _alternatives(type_.type)
    if isinstance(type_, inspect.UnionType):
        return tuple(alternative for member in type_.types for alternative in _alternatives(member))
    return (type_,)


def _item(type_: inspect.Type) -> inspect.Type:
    return next(
        alternative.item_type for alternative in _alternatives(type_) if isinstance(alternative, inspect.ListType)
    )


def _structs(type_: inspect.Type) -> list[inspect.StructType]:
    return [alternative for alternative in _alternatives(type_) if isinstance(alternative, inspect.StructType)]


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


def _tag(tag: Any) -> str:
    return _OTHER if tag == OTHER_TAG else shown(tag)


def _words(type_: inspect.Type) -> Iterator[str]:
    """The words for each alternative."""
    if isinstance(type_, inspect.Metadata):
        expected = (type_.extra or {}).get("expected")
        yield from _words(type_.type) if expected is None else (expected,)
    elif isinstance(type_, inspect.UnionType):
        structs = [member for member in type_.types if isinstance(member, inspect.StructType)]
        for member in type_.types:
            if member not in structs and not isinstance(member, inspect.NoneType):
                yield from _words(member)
        if len(structs) > 1:
            yield f"an object whose {structs[0].tag_field} is {_either([_tag(struct.tag) for struct in structs])}"
        elif structs:
            yield "an object"
    elif isinstance(type_, inspect.LiteralType):
        yield from map(_tag, type_.values)
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
    if isinstance(type_, inspect.DictType):
        return _sized("an object", "items", type_)
    return _SIMPLE.get(type(type_), "a JSON value")


def _sized(what: str, of_what: str, type_: inspect.StrType | inspect.ListType | inspect.DictType) -> str:
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
    """The fields of a struct, of a union of structs by their tag, or of arrays of these."""

    def __init__(self, structs: list[inspect.StructType]) -> None:
        self._tag_field = structs[0].tag_field if len(structs) > 1 else None
        self._fields = {struct.tag if self._tag_field else None: _Fields(struct) for struct in structs}

    @classmethod
    def of(cls, type_: inspect.Type) -> _Known | None:
        """The fields of a type; None if it has no structs."""
        items = [
            alternative.item_type for alternative in _alternatives(type_) if isinstance(alternative, inspect.ListType)
        ]
        structs = [struct for part in (type_, *items) for struct in _structs(part)]
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
