"""Whether a body asks for a stream, as far as the front end looks into it. Runs in the front end's event loop."""

from __future__ import annotations

from typing import Any

import msgspec

from ....core.budgets import LARGE_BODY_BYTES
from ....formats.json_part import fields_in


class _Streamed(msgspec.Struct, frozen=True):
    """The part of a body that asks for a stream."""

    stream: Any = None


def wants_stream(body: bytes) -> bool:
    """Whether `"stream": true` is in a body; False of one that is large, or can't be read."""
    fields = fields_in(body, _Streamed) if len(body) <= LARGE_BODY_BYTES else None
    return fields is not None and fields.stream is True
