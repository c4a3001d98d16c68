"""Binds text to settings: reads the declarations of a settings class, and parses text for each field.

Runs in the front end. Knows nothing about any particular setting.
"""

from __future__ import annotations

import functools
import math
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from ..core.names import did_you_mean
from .masking import masked
from .properties_file import PropertyEntry

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True)
class Setting:
    """One declared setting.

    Attributes:
        field: its name in the class.
        key: its name as the user writes it, prefix included.
        annotation: its type with constraints, for msgspec.
        type_words: its type for people: "integer", "true, false", ...
        expected: what a value has to be, for errors: "an integer >= 1".
        environment: a variable that sets it, beside the prefixed one; "" for none.
        aliases: other names for the key, prefix included.
        spellings: other spellings of values, lower-cased, and the values they stand for.
        without_effect: values that other engines have, lower-cased, and why they have no effect here.
        any_case: whether values may be written in any case.
        choices: the values, where there are only a few.
        entry: the value's name in an object or a K=V list, as other servers write it; "" for none.
    """

    field: str
    key: str
    annotation: Any
    default: object
    help: str
    type_words: str
    expected: str
    environment: str
    aliases: tuple[str, ...]
    spellings: Mapping[str, str]
    without_effect: Mapping[str, str]
    any_case: bool
    entry: str
    choices: tuple[str, ...]

    def parse(self, text: str) -> object:
        """The value that `text` stands for.

        Raises:
            ValueError: `text` is not a valid value; the message begins with "expected".
        """
        if not is_utf8(text):
            raise ValueError("expected UTF-8 text")
        text = text.strip()
        text = self.spellings.get(text.lower(), text.lower() if self.any_case else text)
        kind = typing.get_args(self.annotation)[0]
        for part in (kind, *typing.get_args(kind)):
            if (parser := getattr(part, "parse", None)) is not None:
                return parser(text)
        if self.entry and (match := re.search(rf"\b{self.entry}\b[\"']?\s*[:=]\s*([^,}}\s]+)", text)):
            text = match[1]
        if re.fullmatch(r"[+-]?\.\d+", text):  # as people write a number
            text = text.removeprefix("+").replace(".", "0.")
        try:
            value = msgspec.convert(text, self.annotation, strict=False)
        except msgspec.ValidationError:
            raise ValueError(f"expected {self.expected}") from None
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"expected {self.expected}")
        return value


@functools.cache
def settings_of(struct: type[msgspec.Struct], prefix: str = "") -> tuple[Setting, ...]:
    """The settings that `struct` declares, in order. Fields without a description are results, not settings."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    hints = typing.get_type_hints(struct, include_extras=True)
    settings = []
    for field in info.fields:
        if not isinstance(field.type, inspect.Metadata):
            continue
        extra = field.type.extra or {}
        kinds = [kind for kind in _members(field.type) if not isinstance(kind, inspect.NoneType)]
        settings.append(
            Setting(
                field=field.name,
                key=prefix + field.encode_name,
                annotation=hints[field.name],
                default=field.default,
                help=(field.type.extra_json_schema or {}).get("description", ""),
                type_words=extra.get("type") or " or ".join(_type_words(kind) for kind in kinds),
                expected=extra.get("expected") or ", or ".join(_expected(kind) for kind in kinds),
                environment=extra.get("environment", ""),
                aliases=(*(prefix + alias for alias in extra.get("aliases", ())), *extra.get("arguments", ())),
                spellings=extra.get("spellings", {}),
                without_effect=extra.get("without_effect", {}),
                entry=extra.get("entry", ""),
                any_case=not any(isinstance(kind, inspect.StrType | inspect.StructType) for kind in kinds),
                choices=tuple(
                    str(value) for kind in kinds if isinstance(kind, inspect.LiteralType) for value in kind.values
                ),
            )
        )
    return tuple(settings)


def bind(
    struct: type[S], entries: Mapping[str, PropertyEntry], prefix: str, problems: list[str], warnings: list[str]
) -> dict[str, Any]:
    """The values that `entries` set, by field name.

    An entry without a value counts as missing, and so does one whose value has no effect here.

    Args:
        problems: gets a line for each invalid value.
        warnings: gets a line for each value without effect.
    """
    values = {}
    settings = {setting.key: setting for setting in settings_of(struct, prefix)}
    for key, entry in entries.items():
        setting = settings.get(key)
        if setting is None or not entry.value.strip():
            continue
        text = unquoted(entry.value)
        if text != entry.value.strip():
            warnings.append(f"{entry.source}: {key}: the quotes around its value are not taken as part of it")
        if (reason := setting.without_effect.get(text.lower())) is not None:
            warnings.append(f"{entry.source}: {key}={text} has no effect: {reason}")
            continue
        try:
            values[setting.field] = setting.parse(text)
        except ValueError as exc:
            near = did_you_mean(text, setting.choices)
            comment = "; a comment has a line of its own" if re.search(r"\s[#!]", text) else ""
            problems.append(f"{entry.source}: {key}={masked(key, entry.value)}: {exc}{near or comment}")
    return values


def unquoted(text: str) -> str:
    """A value without the blanks and the pair of quotes around it, which files of variables leave there.

    Example:
        >>> unquoted(' "fp16" '), unquoted('"'), unquoted('{"image": 4}')
        ('fp16', '"', '{"image": 4}')
    """
    text = text.strip()
    return text[1:-1].strip() if len(text) > 2 and text[0] == text[-1] and text[0] in "'\"" else text


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can encode `text`. A variable or a path with other bytes has surrogates in their place."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _members(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    if isinstance(kind, inspect.Metadata):
        return _members(kind.type)
    if isinstance(kind, inspect.UnionType):
        return tuple(member for part in kind.types for member in _members(part))
    return (kind,)


def _type_words(kind: inspect.Type) -> str:
    match kind:
        case inspect.IntType():
            return "integer"
        case inspect.FloatType():
            return "number"
        case inspect.BoolType():
            return "true, false"
        case inspect.LiteralType():
            return ", ".join(str(value) for value in kind.values)
        case inspect.StructType():
            return kind.cls.__name__.lower()
        case _:
            return "text"


def _expected(kind: inspect.Type) -> str:
    match kind:
        case inspect.IntType():
            return "an integer" + _bounds(kind)
        case inspect.FloatType():
            return "a number" + _bounds(kind)
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType():
            return "one of " + ", ".join(str(value) for value in kind.values)
        case _:
            return "text"


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    limits = ((">", kind.gt), (">=", kind.ge), ("<", kind.lt), ("<=", kind.le))
    return "".join(f" {sign} {limit}" for sign, limit in limits if limit is not None).replace(" <", " and <")
