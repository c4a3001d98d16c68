"""Questions that every built-in handler asks about a call: its dialect, whether it is a query, whether it is long.

Runs in the worker.
"""

from __future__ import annotations

import functools
from typing import Final

from djl_python.dialects import dialect
from djl_python.dialects.shared.base import Dialect, Kind
from djl_python.inputs import Input

#: Longer texts are tokenized in a thread: at about a million characters a second this is 20 ms of the loop's time.
LONG_PROMPT_CHARS: Final = 20_000


@functools.cache
def speaker(name: str) -> tuple[Dialect, frozenset[str]]:
    """A dialect, and which of its operations are queries, at the paths that it shares too."""
    api = dialect(name)
    routes = (*api.routes, *api.shared)
    return api, frozenset(route.operation for route in routes if route.kind is Kind.QUERY)


def is_long(inputs: Input) -> bool:
    """Whether a call's text, tools and other parts together may take long to render or tokenize."""
    return sum(len(value) for value in inputs.content.values) + len(inputs.context) > LONG_PROMPT_CHARS


def size_of(inputs: Input) -> int:
    """The bytes that are parsed of a call: of its body, and of earlier responses that it goes on with."""
    return len(inputs.body) + len(inputs.context)
