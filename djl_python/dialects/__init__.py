"""The dialects, by name: one folder for each API. To add one, write its `Dialect` and add a row to `DIALECTS`.

Routes, pages and errors run in the front end, parsing, queries and formatters in the worker. A dialect imports no other
one; `shared` has what several need. The same types are read, written, and shown in /openapi.json.
"""

from __future__ import annotations

from typing import Final

from ..core.registry import resolve
from .shared.base import Dialect

DIALECTS: Final = {
    "lmi": "djl_python.dialects.lmi.dialect:LmiDialect",
    "openai": "djl_python.dialects.openai.dialect:OpenAIDialect",
    "responses": "djl_python.dialects.responses.dialect:ResponsesDialect",
    "tgi": "djl_python.dialects.tgi.dialect:TgiDialect",
    "tei": "djl_python.dialects.tei.dialect:TeiDialect",
    "anthropic": "djl_python.dialects.anthropic.dialect:AnthropicDialect",
    "ollama": "djl_python.dialects.ollama.dialect:OllamaDialect",
    "mindie": "djl_python.dialects.mindie.dialect:MindieDialect",
    "triton": "djl_python.dialects.triton.dialect:TritonDialect",
}


def dialect(name: str) -> Dialect:
    """The dialect of this name."""
    return resolve(DIALECTS, name, "dialect")()  # type: ignore[no-any-return]


def all_dialects() -> dict[str, Dialect]:
    """Every dialect, for the route table."""
    return {name: dialect(name) for name in DIALECTS}
