"""The dialects, by name. Adding one is a file and a row."""

from __future__ import annotations

from typing import Final

from ..registry import resolve
from .base import Dialect

DIALECTS: Final = {
    "lmi": "djl_python.dialects.lmi:LmiDialect",
}


def dialect(name: str) -> Dialect:
    """The dialect of this name."""
    return resolve(DIALECTS, name, "dialect")()  # type: ignore[no-any-return]


def all_dialects() -> dict[str, Dialect]:
    """Every dialect, for the route table."""
    return {name: dialect(name) for name in DIALECTS}
