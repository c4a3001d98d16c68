"""Maps huge pages, prefaults pages, gives pages back. Runs in the engine process; needs no torch."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
from typing import Final

STRETCH: Final = 2 << 20  # bytes that are prefaulted at a time
_HUGE_PAGE: Final = 2 << 20
_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14; elsewhere pages come on first touch


def huge_pages(size: int) -> mmap.mmap:
    """At least `size` bytes of zeros, whose pages the operating system provides on first touch."""
    memory = mmap.mmap(-1, -(-size // _HUGE_PAGE) * _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages refuses: small ones do
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def prefault(start: int, end: int) -> None:
    """Prefault the bytes between two addresses, keeping their contents. Other threads run meanwhile."""
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    libc().madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), _MADV_POPULATE_WRITE)


def give_back(start: int, end: int) -> None:
    """Give the whole pages between two addresses back to the operating system; partial ones hold other data, too."""
    start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    length = end // mmap.PAGESIZE * mmap.PAGESIZE - start
    if length > 0:
        libc().madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_DONTNEED)


@functools.cache
def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
