"""Server-sent events, one for each token, with errors in TGI's shape: TGI's streams, and MindIE's.

Runs in the worker.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

from ..errors import ServingError
from ..output_formatter import SSE, SSE_HEADERS, SSE_KEEP_ALIVE, encode_sse
from ..types import Delta, Finish, Token
from .base import Formatter
from .typed_errors import typed_event


class TypedStreamFormatter(Formatter):
    """An event for each token, which subclasses make in `_event`.

    Args:
        headers: further response headers.
    """

    stream = True
    keep_alive = SSE_KEEP_ALIVE

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = {"content-type": SSE, **SSE_HEADERS, **headers}

    def push(self, delta: Delta) -> bytes:
        last = len(delta.tokens) - 1
        return b"".join(
            encode_sse(self._event(token, delta.finish if position == last else None))
            for position, token in enumerate(delta.tokens)
        )

    def end(self) -> bytes:
        return b""

    def error(self, error: ServingError) -> bytes:
        return typed_event(error)

    @abc.abstractmethod
    def _event(self, token: Token, finish: Finish | None) -> Any:
        """The event of a token, to be encoded; only the last token has `finish`."""
