"""DJL's names for what belongs to one item of a dynamic batch: `batch_000.key`, also written `batch_000_key`.

Runs in the worker.
"""

from __future__ import annotations

import re

_BATCH_KEY = re.compile(r"batch_(\d{3,})[._](.*)", re.DOTALL)


def batch_key(key: str, index: int) -> str:
    """The name for `key` of item `index`."""
    return f"batch_{index:03d}.{key}"


def item_of(key: str | None) -> tuple[int, str] | None:
    """(index of the item, its own key); None where it is no such name."""
    found = _BATCH_KEY.fullmatch(key or "")
    return (int(found[1]), found[2]) if found else None
