"""Masks secrets in the values of settings before they are shown or logged.

Runs in the front end.
"""

from __future__ import annotations

import re
from typing import Final

from .sources import LOGIN

MASK: Final = "********"

_SECRET_KEY = re.compile(r"(^|[_.])(token|secret|password|pass|api_?key|access_key(_id)?)$", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"\bhf_[A-Za-z0-9]{8,}")
_QUERY = re.compile(r"(://[^\s,?#]*)\?[^\s,]*")
_PAIR = re.compile(r"([A-Za-z_]\w*)=([^,]*)")


def masked(key: str, value: str) -> str:
    """`value` as it may be shown: tokens, passwords and keys are replaced, also inside K=V pairs and URLs."""
    if _SECRET_KEY.search(key):
        return MASK if value else ""
    hidden = _PAIR.sub(lambda pair: f"{pair[1]}={MASK}" if _SECRET_KEY.search(pair[1]) else pair[0], value)
    hidden = _QUERY.sub(rf"\1?{MASK}", LOGIN.sub(f"{MASK}@", hidden))
    return _SECRET_VALUE.sub(MASK, hidden)
