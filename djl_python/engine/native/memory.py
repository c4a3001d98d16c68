"""Memory on huge pages: of weights and activations, and of a cache that takes it ahead of its use. Engine process.

What is read from end to end should not cost a look-up every 4 KiB. What is touched for the first time costs a fault,
more than what is computed with it where the machine is virtual: better in a quiet moment than in a step.
"""

from __future__ import annotations

import threading
import time
from mmap import mmap
from typing import Final

import torch
from torch import Tensor

from .pages import STRETCH, give_back, huge_pages, touch

_CHUNK: Final = 256 << 20  # taken by an arena at a time; what isn't used is never touched
_ALIGNMENT: Final = 4096
_QUIET_S: Final = 0.02  # without use, before more is taken


def on_huge_pages(size: int) -> Tensor:
    """Zeros, `size` bytes, which the operating system gives when they are touched."""
    return as_tensor(huge_pages(size))[:size]


def as_tensor(memory: mmap) -> Tensor:
    """(bytes,) uint8, which keeps the memory."""
    return torch.frombuffer(memory, dtype=torch.uint8)


class Arena:
    """Memory on huge pages for many things: each on pages of its own would leave most of its last one empty.

    Args:
        room: what to begin with, instead of what is taken first.
    """

    def __init__(self, room: Tensor | None = None) -> None:
        self._free = torch.empty(0, dtype=torch.uint8) if room is None else room

    def take(self, size: int) -> Tensor:
        """Zeros, `size` bytes, aligned for vectors."""
        whole = -(-size // _ALIGNMENT) * _ALIGNMENT
        if whole > len(self._free):
            self.close()
            self._free = on_huge_pages(max(whole, _CHUNK))
        taken, self._free = self._free[:size], self._free[whole:]
        return taken

    def close(self) -> None:
        """Nothing more will be asked for: what is left of a room goes back."""
        give_back(self._free.data_ptr(), self._free.data_ptr() + len(self._free))
        self._free = self._free[:0]


class Growing:
    """Memory that is used from its beginning; in quiet moments a thread takes what lies further.

    That is `ahead` bytes, or as much again as is used: who has used much is likely to use more.

    Args:
        room: where it may lie, and how much of that has been taken already.
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
        self._changed = threading.Condition()  # guards what is above
        self._name = name
        self._thread: threading.Thread | None = None

    def used_to(self, end: int) -> None:
        """Bytes below `end` are about to be used; until `rest`, whoever uses them wants the processor for himself."""
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
        """Bytes, from the first on, that nobody has to wait for."""
        return self._taken

    def rest(self) -> None:
        """Nothing is used now."""
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
            touch(self.bytes.data_ptr() + begin, self.bytes.data_ptr() + end)  # takes long: nobody may wait for it
            with self._changed:
                self._taken = max(self._taken, end)

    def _next(self) -> tuple[int, int] | None:
        """Waits until something is to be taken and nobody works: from where to where; None once this is closed."""
        with self._changed:
            while not self._closing:
                if self._taken >= self._wanted:
                    self._changed.wait()
                elif self._busy or time.monotonic() < self._rested_s + _QUIET_S:
                    self._changed.wait(_QUIET_S)
                else:
                    return self._taken, min(self._taken + STRETCH, self._wanted)
        return None
