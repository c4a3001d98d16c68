"""Memory that loading took and that running doesn't need. Runs in the engine process, once.

transformers maps safetensors files: a weight is in memory from when it is first read. Once it is packed, its pages can
go; whoever reads it again gets them from the file.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from torch import Tensor

from .memory import libc

_MAPS: Final = Path("/proc/self/maps")


def let_go(tensors: Iterable[Tensor]) -> None:
    """Give mapped tensors' pages back to the operating system; tensors in memory of their own stay as they are."""
    mapped = _checkpoints() if _MAPS.exists() else []
    for tensor in tensors if mapped else ():
        start = tensor.data_ptr()
        end = start + tensor.nbytes
        if not any(low <= start and end <= high for low, high in mapped):
            continue
        # Whole pages only: the others have neighbours on them.
        start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        length = end // mmap.PAGESIZE * mmap.PAGESIZE - start
        if length > 0:
            libc().madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_DONTNEED)


def trim() -> None:
    """Give back what the allocator keeps of freed memory, where it can (glibc)."""
    if hasattr(libc(), "malloc_trim"):
        libc().malloc_trim(0)


def _checkpoints() -> list[tuple[int, int]]:
    """Where files of weights are mapped, unchanged since."""
    found = []
    for line in _MAPS.read_text().splitlines():
        if line.endswith(".safetensors"):
            low, high = line.split(maxsplit=1)[0].split("-")
            found.append((int(low, 16), int(high, 16)))
    return found
