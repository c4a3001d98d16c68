"""Finds the kernels for this processor, or has them built. Engine process, once.

A wheel contains them (setup.py): for every kind of processor, or for that of the machine where it was built. If it
doesn't have them, or if the sources have changed since, the machine's compiler builds them into the user's cache
directory: half a minute of processor time the first time, nothing after. Without a compiler, on an unsupported
processor, or where no code can be loaded, there are none, and `KernelsUnavailableError` gives the reason.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import mmap
import os
import platform
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

from .abi.places import differences
from .compiling import (
    PROCESSORS,
    SOURCES,
    CompilationError,
    Processor,
    compile_kernels,
    features_here,
    fingerprint,
    is_current,
    is_whole,
    processors_here,
)

log = logging.getLogger(__name__)

_FINDING: Final = threading.Lock()


class KernelsUnavailableError(Exception):
    """There are no native kernels here; the message says what is missing."""


def library() -> ctypes.CDLL:
    """The best kernels that exist or can be built for this processor. Looked for once, even if none are found.

    Raises:
        KernelsUnavailableError: no kernels for this processor could be found, built or loaded.
    """
    with _FINDING:
        kernels = kernels_or_reason()
    if isinstance(kernels, str):
        raise KernelsUnavailableError(kernels)
    return kernels


@functools.cache
def kernels_or_reason() -> ctypes.CDLL | str:
    """The result of `library`, or why it failed. The result is kept."""
    try:
        return find_library()
    except KernelsUnavailableError as reason:
        return str(reason)


def find_library() -> ctypes.CDLL:
    """What `library` remembers; looks, and builds if need be, each time."""
    reasons: list[str] = []
    for processor in processors_here():
        try:
            return _declared(_shipped(processor) or _built(processor))
        except CompilationError as reason:  # an old compiler may not know this kind, but the next
            reasons.append(str(reason))
    raise KernelsUnavailableError(reasons[0] if reasons else lacking())


def place_of(processor: Processor) -> str:
    """The place of a kind's kernels, in words; "" if they are not built yet."""
    if is_current(SOURCES / processor.library, processor):
        return "which came with the package"
    home = _home()
    kept = None if home is None else home / f"kernels-{processor.name}-{fingerprint(processor)}.so"
    return f"built before, in {kept}" if kept is not None and is_whole(kept) else ""


def begin_building() -> None:
    """Build the kernels in a background thread, if they aren't there; `library` waits for it."""

    def build() -> None:
        with contextlib.suppress(KernelsUnavailableError):  # `library` raises it again when the kernels are needed
            library()

    threading.Thread(target=build, name="kernels", daemon=True).start()


def lacking() -> str:
    """Why there can't be kernels on this machine; empty if there can."""
    if not PROCESSORS:
        return f"there are none for {sys.platform} on {platform.machine()}"
    missing = PROCESSORS[-1].features - features_here()
    return f"the processor lacks {', '.join(sorted(missing))}" if missing else ""


def _shipped(processor: Processor) -> ctypes.CDLL | None:
    """The kernels of the package, if built from these sources and loadable with this machine's libraries."""
    path = SOURCES / processor.library
    return _loaded(path, "came with the package") if is_current(path, processor) else None


def _built(processor: Processor) -> ctypes.CDLL:
    """The kernels built on this machine before, or built now if there are none or they can't be loaded.

    Raises:
        CompilationError: they can't be built.
        KernelsUnavailableError: they can't be loaded.
    """
    name = f"kernels-{processor.name}-{fingerprint(processor)}.so"
    home = _home()
    if home is not None and os.access(home / name, os.R_OK):
        if not is_whole(home / name):  # a full disk or a loss of power took a part; loaded, it might crash
            log.warning("the CPU kernels in %s are damaged: they are built again", home / name)
        elif kept := _loaded(home / name, "were built before"):
            return kept
    log.info("building the CPU kernels for %s (once)", processor.name)
    try:
        path = _place(home) / name
        compile_kernels(processor, path)
        return ctypes.CDLL(str(path))
    except OSError as reason:  # another processor's kernels would fare no better
        raise KernelsUnavailableError(f"kernels that are built here can't be kept or loaded: {reason}") from reason


def _loaded(path: Path, which: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(path))
    except OSError as reason:
        log.warning("the CPU kernels that %s can't be loaded: %s", which, reason)
        return None


def _home() -> Path | None:
    """The directory that kernels are kept in; None: the user has no home directory."""
    try:
        return Path.home() / ".cache" / "djl-serving"
    except RuntimeError:
        return None


def _place(home: Path | None) -> Path:
    """Where to build: `home`, if files in it can be written and executed; else a temporary directory.

    The next start won't find kernels in the latter.
    """
    if home is not None:
        with contextlib.suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=home) as file:
                file.write(b"\0")
                file.flush()
                mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
            return home
    return Path(tempfile.mkdtemp(prefix="djl-serving-"))


def _declared(loaded: ctypes.CDLL) -> ctypes.CDLL:
    """The kernels, with the types of their functions.

    Raises:
        KernelsUnavailableError: Python describes their structures otherwise.
    """
    if different := differences(loaded):
        raise KernelsUnavailableError(
            f"the kernels were built from other sources than native/abi describes: {', '.join(different[:5])} differ"
        )
    loaded.djl_vectors.restype = ctypes.c_char_p
    loaded.djl_pool.restype = ctypes.c_void_p
    loaded.djl_pool.argtypes = [ctypes.c_int, ctypes.c_int]
    loaded.djl_pool_close.argtypes = [ctypes.c_void_p]
    loaded.djl_parts.argtypes = [ctypes.c_int]
    loaded.djl_codes_bytes.argtypes = [ctypes.c_int, ctypes.c_int]
    loaded.djl_codes_bytes.restype = ctypes.c_int64
    loaded.djl_seconds.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    loaded.djl_seconds.restype = None
    loaded.djl_run.argtypes = [*[ctypes.c_void_p] * 2, ctypes.c_int, *[ctypes.c_void_p] * 2, ctypes.c_int]
    loaded.djl_run.restype = None
    return loaded
