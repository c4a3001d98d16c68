"""JSON as it is sent: how a value is encoded, and how values follow one another in an answer (as lines, as events).

Used in the front end and in the worker. What a client is sent as JSON is encoded here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

JSON: Final = "application/json"
JSONLINES: Final = "application/jsonlines"
#: What jsonlines is called, ours first.
JSONLINES_TYPES: Final = (JSONLINES, "application/x-ndjson", "application/jsonl")
SSE: Final = "text/event-stream"
#: A comment, which clients pass over.
SSE_KEEP_ALIVE: Final = b":\n\n"


def _to_builtin(value: Any) -> Any:
    # Numpy scalars, numpy arrays and torch tensors all have it; none of them needs to be imported to ask.
    tolist = getattr(value, "tolist", None)
    if tolist is None:
        raise TypeError(f"a {type(value).__name__} has no JSON form")
    return tolist()


_encoder = msgspec.json.Encoder(enc_hook=_to_builtin)


def encode_json(payload: Any) -> bytes:
    """A JSON value, compact, UTF-8.

    Raises:
        TypeError: something in it has no JSON form.
    """
    return _encoder.encode(payload)


def encode_jsonlines(payload: Any) -> bytes:
    """One line of a jsonlines stream."""
    return _encoder.encode(payload) + b"\n"


def encode_sse(payload: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + _encoder.encode(payload) + b"\n\n"


#: Content-type, and what one payload becomes.
FRAMINGS: Final[dict[str, tuple[str, Callable[[Any], bytes]]]] = {
    "json": (JSON, encode_json),
    "jsonlines": (JSONLINES, encode_jsonlines),
    "sse": (SSE, encode_sse),
}
#: What option.output_formatter may say -> the framing it means. The chat formatters frame chats in the same way.
FORMATTERS: Final[dict[str, str]] = {name: framing for framing in FRAMINGS for name in (framing, f"{framing}_chat")}
