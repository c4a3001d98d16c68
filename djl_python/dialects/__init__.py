"""The dialects, by name: one folder for each API. To add one, write its `Dialect` and add a row to `DIALECTS`.

Routes, pages and errors run in the front end, parsing, queries and formatters in the worker. A dialect imports no other
one; what several need is in `shared`. Its types are what it reads, what it writes, and what /openapi.json shows.
"""

from __future__ import annotations

from typing import Final

from ..core.registry import resolve
from .shared.base import Dialect

DIALECTS: Final = {
    "lmi": "djl_python.dialects.lmi.dialect:LmiDialect",
    "openai": "djl_python.dialects.openai.dialect:OpenAIDialect",
    "tgi": "djl_python.dialects.tgi.dialect:TgiDialect",
    "mindie": "djl_python.dialects.mindie.dialect:MindieDialect",
    "triton": "djl_python.dialects.triton.dialect:TritonDialect",
}


def dialect(name: str) -> Dialect:
    """The dialect of this name."""
    return resolve(DIALECTS, name, "dialect")()  # type: ignore[no-any-return]


def all_dialects() -> dict[str, Dialect]:
    """Every dialect, for the route table."""
    return {name: dialect(name) for name in DIALECTS}
