"""DJL's keys for the entries of one item of a dynamic batch: `batch_000.key`, in older releases `batch_0_key`.

Runs in the worker.
"""

from __future__ import annotations

import re

_BATCH_KEY = re.compile(r"batch_(\d{3,}[._]|\d+_)(.*)", re.DOTALL)


def batch_key(key: str, index: int) -> str:
    """The batch key of entry `key` of item `index`."""
    return f"batch_{index:03d}.{key}"


def item_of(key: str | None) -> tuple[int, str] | None:
    """(item index, the item's own key) of a batch key; None where `key` is none."""
    match = _BATCH_KEY.fullmatch(key or "")
    return (int(match[1][:-1]), match[2]) if match else None
