"""Prefaults memory for weights and KV cache while imports and loading run. Runs in the engine process, once.

Imports and loading keep one processor busy. A virtual machine gets each page of memory on first touch, so packing the
weights and the first prompts would otherwise wait for page faults. Needs no torch, whose import is half of the time.
"""

from __future__ import annotations

import ctypes
import threading
from mmap import mmap
from pathlib import Path
from typing import Final

from ...gguf import coded_bytes, loaded_bytes
from ..devices.pages import STRETCH, give_back, huge_pages

# Bytes of the KV cache to prefault: at most this many, ...
_MAX_CACHE_BYTES: Final = 512 << 20
# ... at most this share of the cache, ...
_MAX_CACHE_SHARE: Final = 1 / 8
# ... and, while the model isn't known, at most this many times its checkpoint's bytes: small models need little.
_CACHE_OF_CHECKPOINT: Final = 2
# Approximate size of packed weights relative to a bf16 checkpoint: 12, 8, or 4 to 6 bits and scales, and 8 bits for the
# lm_head. A checkpoint's codes keep their size.
_PACKED: Final = {"none": 0.76, "int8": 0.52, "int4": 0.4, "gptq": 1.0, "awq": 1.0}

# A GGUF file's codes take a little more: scales of eight blocks.
_CODED: Final = 1.04


class PrefaultedRegions:
    """Two memory regions, for weights and cache, which a thread starts to prefault at once, in this order.

    Args:
        weights: bytes, all of which are prefaulted.
        cache: bytes, of which the first `cache_prefaulted` are prefaulted.
    """

    def __init__(self, weights: int, cache: int, cache_prefaulted: int) -> None:
        self.weights, self.cache = huge_pages(weights), huge_pages(cache)
        self.cache_prefaulted = 0
        self._wanted = cache_prefaulted
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._take, name="memory", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop prefaulting. The regions may be used only after this, since prefaulting writes zeros to them."""
        self._stopping.set()
        self._thread.join()

    def give_back(self) -> None:
        """Return both regions' pages to the operating system; nothing uses them."""
        self.stop()
        for room in (self.weights, self.cache):
            start = _address(room)
            give_back(start, start + len(room))

    def _take(self) -> None:
        self._clear(self.weights, len(self.weights))
        self.cache_prefaulted = self._clear(self.cache, self._wanted)

    def _clear(self, memory: mmap, size: int) -> int:
        """Zero up to `size` bytes; returns how many. Populating the pages would block imports, which map libraries."""
        start, done = _address(memory), 0
        while done < size and not self._stopping.is_set():
            ctypes.memset(start + done, 0, min(STRETCH, size - done))
            done += STRETCH
        return min(done, size)


def _address(memory: mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def cache_prefault_bytes(size: int) -> int:
    """Bytes to prefault of a cache of `size` bytes."""
    return min(_MAX_CACHE_BYTES, int(size * _MAX_CACHE_SHARE))


def begin_prefault(model: Path, quantize: str, cache: int, available: int) -> PrefaultedRegions | None:
    """Begin to prefault a model's memory; None if its size is unknown, or more than the machine can spare.

    Args:
        model: directory of the checkpoint.
        quantize: `EngineSettings.quantize`.
        cache: maximum bytes of the model's KV cache.
        available: bytes of memory that the machine can give.
    """
    if quantize not in _PACKED:
        return None
    checkpoint = loaded_bytes(model) or sum(path.stat().st_size for path in model.glob("*.safetensors"))
    weights = int(checkpoint * _PACKED[quantize])
    if quantize == "none" and (coded := coded_bytes(model)):
        weights, checkpoint = int(coded * _CODED), coded
    ahead = min(cache_prefault_bytes(cache), _CACHE_OF_CHECKPOINT * checkpoint)
    if not weights or checkpoint + weights + ahead > available // 2:
        return None
    try:
        return PrefaultedRegions(weights, min(cache, available), ahead)
    except OSError:  # address space is limited: memory is taken when it is needed instead
        return None
