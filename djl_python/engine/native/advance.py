"""Memory that is taken before anybody asks for it, beside imports and loading. Runs in the engine process, once.

Those keep one processor busy. On a virtual machine, which gets its memory page by page when it is touched, packing the
weights and the first prompts would otherwise wait for it. Needs no torch, whose import is half of the time.
"""

from __future__ import annotations

import ctypes
import threading
from mmap import mmap
from pathlib import Path
from typing import Final

from .pages import STRETCH, give_back, huge_pages

# Bytes of the cache that are taken before they are needed: at most so many, ...
_CACHE_AHEAD: Final = 512 << 20
# ... at most this part of it, ...
_CACHE_AHEAD_SHARE: Final = 1 / 8
# ... and while the model isn't known, so many times its checkpoint's: small models need little.
_CACHE_OF_CHECKPOINT: Final = 2
# Packed weights' part of a bf16 checkpoint, about: 12, 8, or 4 bits and scales, and a head in 8. Codes stay codes.
_PACKED: Final = {"none": 0.76, "int8": 0.52, "int4": 0.36, "gptq": 1.0, "awq": 1.0}


class Advance:
    """Two rooms, the weights' and the cache's, which a thread begins to take at once, in this order.

    Args:
        weights: bytes, all of which are taken.
        cache: bytes of which `cache_taken` are taken.
    """

    def __init__(self, weights: int, cache: int, cache_taken: int) -> None:
        self.weights, self.cache = huge_pages(weights), huge_pages(cache)
        self.cache_taken = 0
        self._wanted = cache_taken
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._take, name="memory", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The rooms may be used from now on; until now they were written to."""
        self._stopping.set()
        self._thread.join()

    def give_back(self) -> None:
        """Nobody uses the rooms."""
        self.stop()
        for room in (self.weights, self.cache):
            start = _address(room)
            give_back(start, start + len(room))

    def _take(self) -> None:
        self._clear(self.weights, len(self.weights))
        self.cache_taken = self._clear(self.cache, self._wanted)

    def _clear(self, memory: mmap, size: int) -> int:
        """Bytes that were cleared. Populating them would hold up whoever maps a library meanwhile: an import does."""
        start, done = _address(memory), 0
        while done < size and not self._stopping.is_set():
            ctypes.memset(start + done, 0, min(STRETCH, size - done))
            done += STRETCH
        return min(done, size)


def _address(memory: mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def cache_ahead(size: int) -> int:
    """Bytes of a cache of `size` bytes that are taken before they are needed."""
    return min(_CACHE_AHEAD, int(size * _CACHE_AHEAD_SHARE))


def begin_taking(model: Path, quantize: str, cache: int, available: int) -> Advance | None:
    """Begin to take what a model will need; None where that isn't known, or more than the machine can spare.

    Args:
        model: directory of the checkpoint.
        quantize: `EngineSettings.quantize`.
        cache: bytes that its cache may have at most.
        available: bytes that may be taken at all.
    """
    if quantize not in _PACKED:
        return None
    checkpoint = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    weights = int(checkpoint * _PACKED[quantize])
    ahead = min(cache_ahead(cache), _CACHE_OF_CHECKPOINT * checkpoint)
    if not weights or checkpoint + weights + ahead > available // 2:
        return None
    try:
        return Advance(weights, min(cache, available), ahead)
    except OSError:  # addresses are rationed: everybody takes what he needs when he needs it
        return None
