"""Builds the kernels with the machine's compiler, and keeps the result. Engine process, once.

The library is kept by source, compiler and processor in the user's cache directory: some ten seconds the first time,
nothing after. They are written for AVX-512 and for AVX2 (vectors.h). Without a compiler, or on another processor, there
are none and the reason is told.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import platform
import shutil
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_FOLDER: Final = Path(__file__).parent
_FLAGS: Final = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-pthread", "-w")
_NEEDED: Final = {"avx2", "fma", "f16c"}
_BUILD_TIMEOUT_S: Final = 120


_BUILDING: Final = threading.Lock()


class UnavailableError(Exception):
    """There are no native kernels here; the message says what is missing."""


@functools.cache
def library() -> ctypes.CDLL:
    """The kernels.

    Raises:
        UnavailableError: no compiler, no such processor, or the build failed.
    """
    if missing := missing_features():
        raise UnavailableError(f"the processor lacks {', '.join(sorted(missing))}")
    compiler = next((found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), None)
    if compiler is None:
        raise UnavailableError("there is no C++ compiler (c++, g++ or clang++)")
    path = _kept(compiler)
    with _BUILDING:
        if not path.exists():
            _build(compiler, path)
    loaded = ctypes.CDLL(str(path))
    loaded.djl_vectors.restype = ctypes.c_char_p
    loaded.djl_pool.restype = ctypes.c_void_p
    loaded.djl_pool.argtypes = [ctypes.c_int, ctypes.c_int]
    loaded.djl_pool_close.argtypes = [ctypes.c_void_p]
    loaded.djl_parts.argtypes = [ctypes.c_int]
    loaded.djl_seconds.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    loaded.djl_seconds.restype = None
    loaded.djl_run.argtypes = [*[ctypes.c_void_p] * 2, ctypes.c_int, *[ctypes.c_void_p] * 2, ctypes.c_int]
    return loaded


def begin_building() -> None:
    """Build the kernels beside what this process does next, if they aren't there; `library` waits for it."""

    def build() -> None:
        with contextlib.suppress(UnavailableError):  # `library` says it again to whoever wants the kernels
            library()

    threading.Thread(target=build, name="kernels", daemon=True).start()


def missing_features() -> set[str]:
    """What the kernels need and this processor doesn't have."""
    return _NEEDED - _processor_flags()


def _processor_flags() -> set[str]:
    if platform.machine() != "x86_64" or not Path("/proc/cpuinfo").exists():
        return set()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return set(next((line for line in lines if line.startswith("flags")), "").split())


def _kept(compiler: str) -> Path:
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    sources = [path.read_text() for path in sorted((*_FOLDER.glob("*.h"), *_FOLDER.glob("*.cpp")))]
    what = (*sources, " ".join(_FLAGS), version, " ".join(sorted(_processor_flags())))
    name = f"kernels-{hashlib.sha256(chr(0).join(what).encode()).hexdigest()[:16]}.so"
    home = Path.home() / ".cache" / "djl-serving"
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError:  # a container without a home: built again at each start
        return Path(tempfile.mkdtemp(prefix="djl-serving-")) / name
    return home / name


def _build(compiler: str, path: Path) -> None:
    log.info("building the CPU kernels with %s (once)", compiler)
    folder = Path(tempfile.mkdtemp(dir=path.parent))

    def run(*arguments: str | Path) -> None:
        done = subprocess.run(
            [compiler, *_FLAGS, *arguments], capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, check=False
        )
        if done.returncode:
            raise UnavailableError(f"{compiler} failed: {done.stderr.strip().splitlines()[-1:]}")

    def compiled(source: Path) -> Path:
        made = folder / f"{source.stem}.o"
        run("-c", source, "-o", made)
        return made

    try:
        with ThreadPoolExecutor() as side_by_side:
            objects = list(side_by_side.map(compiled, _FOLDER.glob("*.cpp")))
        built = folder / "kernels.so"
        run("-shared", *objects, "-o", built)
        built.rename(path)  # whole or not at all, also when several engines start at once
    finally:
        shutil.rmtree(folder, ignore_errors=True)
