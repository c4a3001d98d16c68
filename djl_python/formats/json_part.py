"""A part of a JSON body, for whoever only has to know that part. Runs in the front end's event loop."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def fields_in(body: bytes, kind: type[T]) -> T | None:
    """The fields of `kind` in a body, whose other fields are skipped.

    None: the body can't be read, or has something else in one of these fields. The worker, which reads all of it, says
    what is wrong.

    Example:
        >>> class Named(msgspec.Struct):
        ...     model: str
        >>> fields_in(b'{"model": "demo", "prompt": "x"}', Named)
        Named(model='demo')
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
