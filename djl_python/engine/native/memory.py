"""Memory on huge pages: for weights and activations, and for caches, prefaulted ahead of their use. Engine process.

Memory that is read from end to end should not cost a TLB lookup every 4 KiB. Memory that is touched for the first time
costs a page fault, on a virtual machine more than computing with it: better in a quiet moment than in a step.
"""

from __future__ import annotations

import threading
import time
from mmap import mmap
from typing import Final

import torch
from torch import Tensor

from ..devices.pages import STRETCH, give_back, huge_pages, prefault

_CHUNK: Final = 256 << 20  # bytes that an arena maps at a time; unused pages are never touched
_ALIGNMENT: Final = 4096
#: How long memory must be without use before more of it is prefaulted.
QUIET_S: Final = 0.02


def on_huge_pages(size: int) -> Tensor:
    """`size` bytes of zeros, whose pages the operating system provides on first touch."""
    return as_tensor(huge_pages(size))[:size]


def as_tensor(memory: mmap) -> Tensor:
    """(bytes,) uint8, which keeps the memory alive."""
    return torch.frombuffer(memory, dtype=torch.uint8)


class Arena:
    """Memory on huge pages for many tensors: with pages of its own, each would leave most of its last page empty.

    Args:
        room: memory to use before any is mapped.
    """

    def __init__(self, room: Tensor | None = None) -> None:
        self._free = torch.empty(0, dtype=torch.uint8) if room is None else room

    def take(self, size: int) -> Tensor:
        """`size` bytes of zeros, aligned for vectors."""
        whole = -(-size // _ALIGNMENT) * _ALIGNMENT
        if whole > len(self._free):
            self.close()
            self._free = on_huge_pages(max(whole, _CHUNK))
        taken, self._free = self._free[:size], self._free[whole:]
        return taken

    def close(self) -> None:
        """Give the unused rest of the current memory back to the operating system."""
        give_back(self._free.data_ptr(), self._free.data_ptr() + len(self._free))
        self._free = self._free[:0]


class PrefaultedMemory:
    """Memory that is used from its beginning; in quiet moments a thread prefaults the next bytes.

    That is `ahead` bytes, or as much again as is used if that is more: heavy use is likely to grow.

    Args:
        room: memory to use if it is large enough, and how many bytes of it are prefaulted already.
        name: of the thread.
    """

    def __init__(
        self, size: int, ahead: int, room: tuple[Tensor, int] | None = None, name: str = "cache memory"
    ) -> None:
        if room is None or len(room[0]) < size:
            room = on_huge_pages(size), 0
        self.bytes = room[0][:size]
        give_back(self.bytes.data_ptr() + size, self.bytes.data_ptr() + len(room[0]))
        self._ahead = min(ahead, size)
        self._taken = self._wanted = min(room[1], size)
        self._rested_s = 0.0
        self._busy = False
        self._closing = False
        self._changed = threading.Condition()  # guards the fields above
        self._name = name
        self._thread: threading.Thread | None = None

    def used_to(self, end: int) -> None:
        """Bytes below `end` are about to be used; until `rest`, prefaulting leaves the processor to the step."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._take, name=self._name, daemon=True)
                self._thread.start()
            self._busy = True
            self._taken = max(self._taken, end)
            if (wanted := min(end + max(end, self._ahead), len(self.bytes))) > self._wanted:
                self._wanted = wanted
                self._changed.notify()

    @property
    def taken(self) -> int:
        """Bytes, from the first on, that are prefaulted or in use."""
        return self._taken

    def rest(self) -> None:
        """Nothing is used now: prefaulting may go on."""
        with self._changed:
            self._rested_s = time.monotonic()
            self._busy = False

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _take(self) -> None:
        while (stretch := self._next()) is not None:
            begin, end = stretch
            prefault(self.bytes.data_ptr() + begin, self.bytes.data_ptr() + end)  # long: not under the lock
            with self._changed:
                self._taken = max(self._taken, end)

    def _next(self) -> tuple[int, int] | None:
        """Wait until there is something to prefault and no step runs; (begin, end) of it, or None once closed."""
        with self._changed:
            while not self._closing:
                if self._taken >= self._wanted:
                    self._changed.wait()
                elif self._busy or time.monotonic() < self._rested_s + QUIET_S:
                    self._changed.wait(QUIET_S)
                else:
                    return self._taken, min(self._taken + STRETCH, self._wanted)
        return None
