"""Giving memory back to the operating system after a large request. Runs in the worker's event loop, and a thread.

The C library keeps freed memory: after bodies of 60 MB a worker stayed at 180 MB instead of 65. Only glibc has a
    function to give it back; elsewhere nothing is done.
"""

from __future__ import annotations

import asyncio
import ctypes
from typing import Final

#: Only calls with larger bodies trigger it: to search a heap of a few hundred megabytes takes some milliseconds.
LARGE_BYTES: Final = 1 << 20
#: How long to wait for another large request after each.
_PAUSE_S: Final = 0.1


class FreedMemory:
    """Gives memory back once the last of the large calls has ended.

    Attributes:
        trim: glibc's `malloc_trim`; None in other C libraries.
    """

    def __init__(self) -> None:
        self.trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._soon: asyncio.TimerHandle | None = None

    def call_ended(self, size: int) -> None:
        """Record the end of a call of so many bytes."""
        if self.trim is None or size < LARGE_BYTES:
            return
        if self._soon is not None:
            self._soon.cancel()
        loop = asyncio.get_running_loop()
        self._soon = loop.call_later(_PAUSE_S, loop.run_in_executor, None, self.trim, 0)
