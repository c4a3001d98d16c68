"""Encodes JSON for clients, and frames streams of JSON values as lines or server-sent events.

Used in the front end and the worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import msgspec

JSON: Final = "application/json"
JSONLINES: Final = "application/jsonlines"
#: Content types of jsonlines, ours first.
JSONLINES_TYPES: Final = (JSONLINES, "application/x-ndjson", "application/jsonl")
SSE: Final = "text/event-stream"
#: An SSE comment, which clients ignore.
SSE_KEEP_ALIVE: Final = b":\n\n"


#: The names of values that are no text, where they are keys of an object: json.dumps has them too.
_KEYS: Final = {None: "null", True: "true", False: "false"}


def _to_builtin(value: Any) -> Any:
    if value is None or isinstance(value, bool):  # asked for where it is a key only
        return _KEYS[value]
    # Numpy scalars, numpy arrays and torch tensors all have tolist; neither library needs to be imported.
    tolist = getattr(value, "tolist", None)
    if tolist is None:
        raise TypeError(f"a {type(value).__name__} has no JSON form")
    return tolist()


_encoder = msgspec.json.Encoder(enc_hook=_to_builtin)


def encode_json(payload: Any) -> bytes:
    """`payload` as compact JSON in UTF-8.

    Raises:
        TypeError: something in it has no JSON form.
    """
    return _encoder.encode(payload)


def encode_finite_json(payload: Any) -> bytes:
    """`payload` as compact JSON in UTF-8, without numbers that JSON does not have.

    Raises:
        TypeError: something in it has no JSON form.
        ValueError: a number in it is NaN or infinite.
    """
    encoded = _encoder.encode(payload)
    if b"null" in encoded:  # which such numbers become
        left = [msgspec.to_builtins(payload, enc_hook=_to_builtin)]
        while left:
            value = left.pop()
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"JSON has no number {value}")
            left.extend(value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ())
    return encoded


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
