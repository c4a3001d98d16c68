"""Reads the fields of forms and queries, and checks their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from ...core.errors import ParameterError
from ...core.names import did_you_mean
from ...dialects.shared.typed_body import read_body

T = TypeVar("T", bound=msgspec.Struct)

_IN_BRACKETS: Final = re.compile(r"(\w+)\[(\w+)\]")


def nested(fields: Iterable[tuple[str, bytes]]) -> dict[str, Any]:
    """The fields of a form; a[b] is the field b of the object a."""
    form: dict[str, Any] = {}
    for name, data in fields:
        value = data.decode(errors="replace")
        inside = _IN_BRACKETS.fullmatch(name)
        if inside is None:
            form[name] = value
        elif isinstance(form.get(inside[1]), dict):
            form[inside[1]][inside[2]] = value
        else:
            form[inside[1]] = {inside[2]: value}
    return form


def read_texts(given: dict[str, Any], into: type[T]) -> T:
    """Fields whose values are text, converted to their types.

    Raises:
        ParameterError: one is wrong, or there is no such field.
    """
    check_known(given, into)
    return read_body(given, into, strict=False)


def check_known(given: Mapping[str, Any], into: type[msgspec.Struct]) -> None:
    """Check that fields of these names exist.

    Raises:
        ParameterError: there is none of one.
    """
    known = [field.encode_name for field in msgspec.structs.fields(into)]
    for name in given:
        if name not in known:
            raise ParameterError(f"{name}: there is no such parameter{did_you_mean(name, known)}", name)
