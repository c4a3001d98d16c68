"""A stream that begins while its model is still loading, so that its client sees signs of life.

Runs in the front end's event loop. What a worker then answers belongs to the stream, also where it is an error: status
and headers have been sent.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...dialects.shared.base import Dialect
from ...formats.forms import media_type
from ...formats.json_framing import SSE


class EarlyStream:
    """A stream of server-sent events that has begun before a worker has the request."""

    def __init__(self) -> None:
        self._gathered: list[bytes] | None = None  # the pieces of an answer that is no stream

    def started(self, status: int, headers: Mapping[str, str]) -> None:
        """The worker's answer begins."""
        if status != 200 or media_type(headers.get("content-type", "")) != SSE:
            self._gathered = []

    def piece(self, data: bytes, last: bool, dialect: Dialect) -> bytes:
        """What a piece of the worker's answer is in the stream; of an answer that is none, all comes at its end."""
        if self._gathered is None:
            return data
        self._gathered.append(data)
        return dialect.late_error(b"".join(self._gathered)) if last else b""
