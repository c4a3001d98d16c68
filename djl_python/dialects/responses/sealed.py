"""Reasoning in the form in which clients keep it for the server: `encrypted_content`. Runs in the worker.

OpenAI encrypts it, so that clients can send it back with the next request and cannot read it. Here clients may read
their reasoning, so it is merely encoded. Some clients, such as Codex, send back nothing else of it.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from ...core.errors import PayloadError

#: Tells our content from that of other services, which no model here can read.
_MARK: Final = "djl-reasoning:"


def sealed(reasoning: str) -> str:
    """The encoded reasoning."""
    return _MARK + base64.b64encode(reasoning.encode(errors="replace")).decode()


def unsealed(content: str, field: str) -> str:
    """The reasoning; "" if another service encoded it.

    Args:
        field: the path of the content, for errors.

    Raises:
        PayloadError: it begins as ours does, and goes on as something else.
    """
    if not content.startswith(_MARK):
        return ""
    try:
        return base64.b64decode(content[len(_MARK) :], validate=True).decode()
    except (binascii.Error, ValueError) as exc:
        message = f"{field}: expected the encrypted_content of an answer as it was, and this has been changed"
        raise PayloadError(message, field) from exc
