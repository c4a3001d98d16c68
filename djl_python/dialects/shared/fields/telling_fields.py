"""Tells the APIs apart that share a path, by fields that only one of them has.

Runs in the front end's event loop.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ....core import budgets
from ....formats.json_part import fields_in

_FIELDS: Final = dict[str, msgspec.Raw]
_NULL: Final = msgspec.Raw(b"null")


def has_fields(body: bytes, its: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether a JSON object has one of the fields `its`, and none of the fields `others`; nulls don't count.

    Within a text, the quotes around a word are escaped. So a word in quotes is a field, here or in an object within, or
    a string of that word alone; only where both APIs' words are in the body it is parsed. A large one with both is
    taken for the others'.
    """
    if not any(_quoted(name) in body for name in its):
        return False
    if not any(_quoted(name) in body for name in others):
        return True
    if len(body) > budgets.LARGE_BODY_BYTES:
        return False
    if (fields := fields_in(body, _FIELDS)) is None:
        return False
    names = {name for name, value in fields.items() if value != _NULL}
    return not names.isdisjoint(its) and names.isdisjoint(others)


def _quoted(name: str) -> bytes:
    return f'"{name}"'.encode()
