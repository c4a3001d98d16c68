"""Work on a long file in a thread, beside an event loop that has to answer meanwhile."""

from __future__ import annotations

import time
from typing import Final

_TURN_BYTES: Final = 64 << 10


class Turns:
    """Lets other threads run after every so many bytes.

    Python takes the interpreter from a thread after 5 ms only: an event loop that wakes up beside one that parses waits
    that long, each time.
    """

    def __init__(self) -> None:
        self._left = _TURN_BYTES

    def worked(self, size: int) -> None:
        """So many bytes have been worked on."""
        self._left -= size
        if self._left < 0:
            self._left = _TURN_BYTES
            time.sleep(0)
