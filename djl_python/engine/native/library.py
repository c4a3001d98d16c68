"""Finds the kernels for this processor, or has them built. Engine process, once.

A wheel contains them (setup.py). If it doesn't, or if the sources have changed since, the machine's compiler builds
them into the user's cache directory: some ten seconds the first time, nothing after. Without a compiler, or on an
unsupported processor, there are none, and `UnavailableError` gives the reason.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import platform
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

from .compiling import (
    PROCESSORS,
    SOURCES,
    TILES,
    CompilationError,
    Processor,
    compile_kernels,
    features_here,
    fingerprint,
    is_current,
)

log = logging.getLogger(__name__)

_BUILDING: Final = threading.Lock()
# arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) of Linux on x86-64
_ARCH_PRCTL: Final = 158
_REQUEST_PERMISSION: Final = 0x1023
_TILE_DATA: Final = 18


class UnavailableError(Exception):
    """There are no native kernels here; the message says what is missing."""


@functools.cache
def library() -> ctypes.CDLL:
    """The best kernels that exist or can be built for this processor.

    Raises:
        UnavailableError: the processor lacks a feature, or the package has no kernels and none could be built.
    """
    reasons: list[str] = []
    for processor in processors_here():
        try:
            return _declared(_found(processor) or _built(processor))
        except CompilationError as reason:  # an old compiler may not know this kind, but the next
            reasons.append(str(reason))
    raise UnavailableError(reasons[0] if reasons else lacking())


def processors_here() -> list[Processor]:
    """The kinds of processor whose kernels this process can run, best first."""
    here = features_here()
    if here >= TILES and not _may_use_tiles():
        here -= TILES
    return [processor for processor in PROCESSORS if processor.features <= here]


def _may_use_tiles() -> bool:
    """Ask the system for permission to use AMX tiles, 8 KiB of state for each thread; later threads have it, too.

    Linux grants it to any process from 5.16 on (its documentation of XSTATE); systems that emulate Linux may not.
    """
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


def begin_building() -> None:
    """Build the kernels in a background thread, if they aren't there; `library` waits for it."""

    def build() -> None:
        with contextlib.suppress(UnavailableError):  # `library` raises it again when the kernels are needed
            library()

    threading.Thread(target=build, name="kernels", daemon=True).start()


def lacking() -> str:
    """Why there can't be kernels on this machine; empty if there can."""
    if not PROCESSORS:
        return f"there are none for {sys.platform} on {platform.machine()}"
    missing = PROCESSORS[-1].features - features_here()
    return f"the processor lacks {', '.join(sorted(missing))}" if missing else ""


def _found(processor: Processor) -> ctypes.CDLL | None:
    """The kernels of the package, if built from these sources and loadable with this machine's libraries."""
    path = SOURCES / processor.library
    if not is_current(path, processor):
        return None
    try:
        return ctypes.CDLL(str(path))
    except OSError as reason:
        log.warning("the CPU kernels that came with the package can't be loaded: %s", reason)
        return None


def _built(processor: Processor) -> ctypes.CDLL:
    """The kernels built on this machine, now or before."""
    path = Path.home() / ".cache" / "djl-serving" / f"kernels-{processor.name}-{fingerprint(processor)}.so"
    with _BUILDING:
        if not path.exists():
            log.info("building the CPU kernels for %s (once)", processor.name)
            path = _writable(path.parent) / path.name
            compile_kernels(processor, path)
    return ctypes.CDLL(str(path))


def _writable(home: Path) -> Path:
    """`home`; if a container has none, or a read-only one, a temporary directory that the next start won't find."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=home).close()
    except OSError:
        return Path(tempfile.mkdtemp(prefix="djl-serving-"))
    return home


def _declared(loaded: ctypes.CDLL) -> ctypes.CDLL:
    loaded.djl_vectors.restype = ctypes.c_char_p
    loaded.djl_pool.restype = ctypes.c_void_p
    loaded.djl_pool.argtypes = [ctypes.c_int, ctypes.c_int]
    loaded.djl_pool_close.argtypes = [ctypes.c_void_p]
    loaded.djl_parts.argtypes = [ctypes.c_int]
    loaded.djl_codes_bytes.argtypes = [ctypes.c_int]
    loaded.djl_codes_bytes.restype = ctypes.c_int64
    loaded.djl_seconds.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    loaded.djl_seconds.restype = None
    loaded.djl_run.argtypes = [*[ctypes.c_void_p] * 2, ctypes.c_int, *[ctypes.c_void_p] * 2, ctypes.c_int]
    return loaded
