"""Lets a thread work on a long file while an event loop answers."""

from __future__ import annotations

import time
from typing import Final

_TURN_BYTES: Final = 64 << 10


class Turns:
    """Lets other threads run after every so many bytes.

    Python switches threads after 5 ms only: beside a thread that parses, an event loop waits that long each time it
        wakes up.
    """

    def __init__(self) -> None:
        self._left = _TURN_BYTES

    def worked(self, size: int) -> None:
        """So many bytes have been worked on."""
        self._left -= size
        if self._left < 0:
            self._left = _TURN_BYTES
            time.sleep(0)
