"""Answers in a chosen framing, and those whose server-sent events end as OpenAI's do: chats and completions.

Runs in the worker.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Final

from ..json_framing import FRAMINGS, SSE_KEEP_ALIVE, encode_json
from .base import Formatter

SSE_DONE: Final = b"data: [DONE]\n\n"
_PLACE: Final = uuid.uuid4().hex  # like no name of a model


def around(encoded: Callable[[str], bytes]) -> Callable[[str], bytes]:
    """The same function of a text, for objects that differ in nothing else: what is around it is encoded once.

    Most of a stream is such objects, and most of their bytes are around the text.
    """
    before, after = encoded(_PLACE).split(encode_json(_PLACE))
    return lambda text: b"%b%b%b" % (before, encode_json(text), after)


class FramedFormatter(Formatter):
    """What a framing decides: `_encode` makes bytes of an object.

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
    """One whose events end with [DONE]: `_done` ends a stream."""

    def __init__(self, framing: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(framing, headers)
        self._done = SSE_DONE if framing == "sse" else b""
