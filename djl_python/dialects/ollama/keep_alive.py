"""`keep_alive`: how long a model stays loaded after a request. Runs in the front end, and in the worker as a type.

A number of seconds, or a duration in Go's form ("5m", "1h30m"); below 0: for ever; 0: unload it once it is idle.
"""

from __future__ import annotations

import math
import re
import sys
import time
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ...core.errors import ParameterError
from ...formats.json_framing import JSON, encode_json
from ...formats.json_part import fields_in
from ..shared.base import Answer
from .answer import AnsweredMessage, OllamaChatResponse, OllamaGenerateResponse, timestamp

FIELD: Final = "keep_alive"
#: A request with more bytes has a prompt.
_LOADS_BYTES: Final = 4096
_EXPECTED: Final = 'expected seconds, or a duration such as "5m" or "1h30m"; below 0: for ever, 0: unload it now'
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)"
_DURATION: Final = re.compile(rf"([+-]?)((?:{_PART})+)", re.ASCII)

KeepAlive = Annotated[
    int | float | str,
    Meta(
        description='How long the model stays loaded without a request: seconds, or "5m"; below 0: for ever; 0: it is '
        "unloaded after the answer."
    ),
]


class _Body(msgspec.Struct, frozen=True):
    """The part of a body that says how long its model stays."""

    keep_alive: Any = None


class _Empty(msgspec.Struct, frozen=True):
    """The parts of a body that show whether there is anything to answer."""

    model: str = ""
    prompt: Any = None
    suffix: Any = None
    messages: Any = None
    keep_alive: Any = None


def keep_alive_s(body: bytes) -> float | None:
    """The seconds of a body's `keep_alive`, `math.inf` for ever; None: the body has none, or the worker refuses it.

    Raises:
        ParameterError: it is neither a number nor a duration.
    """
    fields = fields_in(body, _Body)
    return None if fields is None or fields.keep_alive is None else seconds_of(fields.keep_alive)


def seconds_of(value: Any) -> float:
    """The seconds of a value of the field.

    Raises:
        ParameterError: it is neither a number nor a duration.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(max(-1, min(value, sys.float_info.max)))  # an integer may be too large for a float
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in re.findall(_PART, match[2]))
        seconds = -seconds if match[1] == "-" else seconds
    elif value == "0":
        seconds = 0.0
    else:
        shown = encode_json(value)[:60].decode(errors="replace")
        raise ParameterError(f"{FIELD}: {_EXPECTED}, got {shown}", FIELD)
    return math.inf if seconds < 0 else seconds


def unloading(body: bytes, *, chat: bool) -> Answer | None:
    """The answer to a request that has nothing to answer and says 0: it has its model unloaded. None: another request.

    Raises:
        ParameterError: see `seconds_of`.
    """
    if len(body) > _LOADS_BYTES:
        return None
    fields = fields_in(body, _Empty)
    if (
        fields is None
        or fields.keep_alive is None
        or fields.prompt
        or fields.suffix
        or fields.messages
        or seconds_of(fields.keep_alive) > 0
    ):
        return None
    said: dict[str, Any] = {
        "model": fields.model,
        "created_at": timestamp(time.time()),
        "done": True,
        "done_reason": "unload",
    }
    if chat:
        answer: object = OllamaChatResponse(message=AnsweredMessage(content=""), **said)
    else:
        answer = OllamaGenerateResponse(response="", **said)
    return Answer(200, encode_json(answer), {"content-type": JSON})
