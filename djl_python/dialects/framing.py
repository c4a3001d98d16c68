"""Answers in a chosen framing, whose server-sent events end as OpenAI's do: chats and completions.

Runs in the worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..output_formatter import FRAMINGS, SSE_KEEP_ALIVE
from .base import Formatter

SSE_DONE: Final = b"data: [DONE]\n\n"


class FramedFormatter(Formatter):
    """What a framing decides: `_encode` makes bytes of an object, `_done` ends a stream.

    Args:
        framing: json, jsonlines or sse; the last two stream.
        headers: further response headers.
    """

    def __init__(self, framing: str, headers: Mapping[str, str] | None) -> None:
        content_type, self._encode = FRAMINGS[framing]
        self.stream = framing != "json"
        self.headers = {"content-type": content_type, **(headers or {})}
        self.keep_alive = SSE_KEEP_ALIVE if framing == "sse" else b""
        self._done = SSE_DONE if framing == "sse" else b""
