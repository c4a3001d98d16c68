"""Bases of formatters: answers in a chosen framing, and those whose server-sent events end as OpenAI's do.

Runs in the worker.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Final

from ...formats.json_framing import FRAMINGS, SSE_KEEP_ALIVE, encode_json
from .base import Formatter

SSE_DONE: Final = b"data: [DONE]\n\n"
_PLACE: Final = uuid.uuid4().hex  # a placeholder that no model's name contains


def around(encoded: Callable[[str], bytes]) -> Callable[[str], bytes]:
    """A faster `encoded` for objects that differ in one text only: the bytes around the text are encoded once.

    Most objects of a stream are like that, and most of their bytes are around the text.
    """
    before, after = encoded(_PLACE).split(encode_json(_PLACE))
    return lambda text: b"%b%b%b" % (before, encode_json(text), after)


class FramedFormatter(Formatter):
    """A formatter in one framing: `_encode` turns an object into bytes.

    Args:
        framing: json, jsonlines or sse; the last two stream.
        headers: further response headers.
    """

    def __init__(self, framing: str, headers: Mapping[str, str] | None = None) -> None:
        content_type, self._encode = FRAMINGS[framing]
        self.stream = framing != "json"
        self.headers = {"content-type": content_type, **(headers or {})}
        self.keep_alive = SSE_KEEP_ALIVE if framing == "sse" else b""


class DoneFormatter(FramedFormatter):
    """A formatter whose events end with [DONE]: `_done` ends a stream."""

    def __init__(self, framing: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(framing, headers)
        self._done = SSE_DONE if framing == "sse" else b""
