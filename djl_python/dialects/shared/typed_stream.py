"""Server-sent events, one for each token, with errors in TGI's shape: TGI's streams, and MindIE's.

Runs in the worker.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

from ...core.errors import ServingError
from ...core.types import Delta, Finish, Token
from .framing import FramedFormatter
from .typed_errors import typed_event


class TypedStreamFormatter(FramedFormatter):
    """An event for each token, which subclasses make in `_event`.

    Args:
        headers: further response headers.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__("sse", headers)

    def push(self, delta: Delta) -> bytes:
        last = len(delta.tokens) - 1
        return b"".join(
            self._encode(self._event(token, delta.finish if position == last else None))
            for position, token in enumerate(delta.tokens)
        )

    def end(self) -> bytes:
        return b""

    def error(self, error: ServingError) -> bytes:
        return typed_event(error)

    @abc.abstractmethod
    def _event(self, token: Token, finish: Finish | None) -> Any:
        """The event of a token, to be encoded; only the last token has `finish`."""
