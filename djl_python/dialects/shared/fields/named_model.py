"""The model that a body names in its field `model`, as OpenAI's API and others have it.

Runs in the front end's event loop, so a body is searched for that field alone.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ....core import budgets
from ....core.errors import PayloadError
from ..request_body import object_of
from ..typed_body import read_body

#: Longer bodies are not parsed a second time, into objects, for a better error message: that would take a tenth of a
#: second of the front end's time per megabyte.
_EXPLAINED_BYTES: Final = 1 << 20


class _Named(msgspec.Struct, frozen=True):
    """The part of a body that names the model."""

    model: str | None = None


def named_model(body: bytes) -> str | None:
    """The value of `model`; None where there is none.

    Raises:
        PayloadError, ParameterError: the body can't be read.
    """
    try:
        return msgspec.json.decode(body, type=_Named).model or None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        if len(body) > _EXPLAINED_BYTES:
            raise PayloadError(f"the request body: {exc}") from exc
        return read_body(object_of(body, budgets.VALUES.most), _Named).model or None  # raises with a better message
