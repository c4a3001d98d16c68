"""How many threads this process has."""

from __future__ import annotations

import time

import psutil


def threads() -> int:
    """Now, with those that are ending."""
    return psutil.Process().num_threads()


def come_down_to(most: int, within_s: float = 10) -> bool:
    """Whether they do: a thread that was joined is counted for a moment more."""
    deadline = time.monotonic() + within_s
    while (now := threads()) > most and time.monotonic() < deadline:
        time.sleep(0.001)
    return now <= most
