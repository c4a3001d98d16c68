"""Memory on huge pages: of weights and activations, and of a cache that takes it ahead of its use. Engine process.

What is read from end to end should not cost a look-up every 4 KiB. What is touched for the first time costs a fault,
more than what is computed with it where the machine is virtual: better in a quiet moment than in a step.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import threading
import time
from typing import Final

import torch
from torch import Tensor

_HUGE_PAGE: Final = 2 << 20
_CHUNK: Final = 256 << 20  # taken by an arena at a time; what isn't used is never touched
_ALIGNMENT: Final = 4096
_STRETCH: Final = 2 << 20  # taken at a time
_QUIET_S: Final = 0.02  # without use, before more is taken
_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14; elsewhere memory comes when it is touched


def on_huge_pages(size: int) -> Tensor:
    """Zeros, `size` bytes, which the operating system gives when they are touched."""
    memory = mmap.mmap(-1, -(-size // _HUGE_PAGE) * _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8, count=size)


class Arena:
    """Memory on huge pages for many things: each on pages of its own would leave most of its last one empty."""

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> Tensor:
        """Zeros, `size` bytes, aligned for vectors."""
        whole = -(-size // _ALIGNMENT) * _ALIGNMENT
        if whole > len(self._free):
            self._free = on_huge_pages(max(whole, _CHUNK))
        taken, self._free = self._free[:size], self._free[whole:]
        return taken

    def give_back(self, taken: Tensor) -> None:
        """The memory of what isn't used after all; nobody may read it again, and nobody gets it."""
        start, size = taken.data_ptr(), len(taken) // mmap.PAGESIZE * mmap.PAGESIZE
        libc().madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


def touch(memory: Tensor, start: int, end: int) -> None:
    """Take the bytes from start to end of `memory` now; what is there stays. Other threads run meanwhile."""
    first = memory.data_ptr() + start // mmap.PAGESIZE * mmap.PAGESIZE
    libc().madvise(ctypes.c_void_p(first), ctypes.c_size_t(memory.data_ptr() + end - first), _MADV_POPULATE_WRITE)


class Growing:
    """Memory that is used from its beginning; in quiet moments a thread takes what lies further.

    That is `ahead` bytes, or as much again as is used: who has used much is likely to use more.
    """

    def __init__(self, size: int, ahead: int) -> None:
        self.bytes = on_huge_pages(size)
        self._ahead = min(ahead, size)
        self._taken = 0
        self._wanted = 0
        self._busy = False
        self._rested_s = 0.0
        self._more = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def used_to(self, end: int) -> None:
        """Bytes below `end` are about to be used; until `rest`, whoever uses them wants the processor for himself."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._take, name="cache memory", daemon=True)
            self._thread.start()
        self._busy = True
        if (wanted := min(end + max(end, self._ahead), len(self.bytes))) > self._wanted:
            self._taken = max(self._taken, end)
            self._wanted = wanted
            self._more.set()

    def rest(self) -> None:
        """Nothing is used now."""
        self._rested_s = time.monotonic()
        self._busy = False

    def close(self) -> None:
        self._closing.set()
        self._more.set()
        if self._thread is not None:
            self._thread.join()

    def _take(self) -> None:
        while self._more.wait() and not self._closing.is_set():
            if self._taken >= self._wanted:
                self._more.clear()
            elif self._busy or time.monotonic() < self._rested_s + _QUIET_S:
                self._closing.wait(_QUIET_S)
            else:
                end = min(self._taken + _STRETCH, self._wanted)
                touch(self.bytes, self._taken, end)
                self._taken = end


@functools.cache
def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
