"""Compiles the kernels for a kind of processor: when a wheel is built, or in an engine process whose wheel lacks them.

Imports nothing from the package: setup.py runs this before the package is installed.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

#: The folder of the kernels' sources, and of the kernels that come with the package. Sources include each other by
#: their path in it.
SOURCES: Final = Path(__file__).parent / "kernels"
_FLAGS: Final = ("-std=c++17", "-O3", "-fPIC", "-pthread")
#: How long a compiler may take.
TIMEOUT_S: Final = 300
#: Headers of the C++ library and of the system; a compiler alone does not bring them.
_HEADERS: Final = ("algorithm", "atomic", "cstdint", "thread", "vector", "unistd.h", "linux/futex.h")
_DIGEST_BYTES: Final = hashlib.sha256().digest_size
_AVX2: Final = frozenset({"avx2", "fma", "f16c"})
_AVX512: Final = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_AVX512_BF16: Final = _AVX512 | {"avx512_vnni", "avx512_bf16"}
#: AMX: a process has to ask the system for permission to use tiles.
TILES: Final = frozenset({"amx_tile", "amx_bf16", "amx_int8"})
# arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) of Linux on x86-64
_ARCH_PRCTL: Final = 158
_REQUEST_PERMISSION: Final = 0x1023
_TILE_DATA: Final = 18


class CompilationError(Exception):
    """No compiler, a failed one, or no directory for the kernels; the message says which."""


class Processor(NamedTuple):
    """A kind of processor, for which machine code is compiled.

    Attributes:
        machine: architecture, as `platform.machine` names it.
        features: CPU features that the kernels need, as /proc/cpuinfo names them.
        flags: compiler flags for these features.
    """

    name: str
    machine: str
    features: frozenset[str]
    flags: tuple[str, ...]

    @property
    def library(self) -> str:
        """File name of the kernels that come with the package."""
        return f"kernels-{self.name}.so"


def _x86(name: str, features: frozenset[str]) -> Processor:
    names = (feature.replace("_", "-" if feature in TILES else "") for feature in sorted(features))
    return Processor(name, "x86_64", features, tuple(f"-m{name}" for name in names))


_ALL: Final = (
    _x86("amx", _AVX512_BF16 | TILES),
    _x86("avx512-bf16", _AVX512_BF16),
    _x86("avx512-vnni", _AVX512 | {"avx512_vnni"}),
    _x86("avx512", _AVX512),
    _x86("avx2-vnni", _AVX2 | {"avx_vnni"}),
    _x86("avx2", _AVX2),
    Processor("neon-bf16", "aarch64", frozenset({"asimd", "bf16", "i8mm"}), ("-march=armv8.2-a+bf16+i8mm",)),
    Processor("neon", "aarch64", frozenset({"asimd"}), ("-march=armv8-a",)),
)
#: The kinds that the kernels distinguish (vectors.h) on this machine's architecture, best first; empty if unsupported.
PROCESSORS: Final = tuple(
    processor for processor in _ALL if sys.platform == "linux" and processor.machine == platform.machine()
)


def features_here() -> set[str]:
    """CPU features of this machine, as /proc/cpuinfo names them; empty if it names none."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return set(next((line for line in lines if line.startswith(("flags", "Features"))), "").split())


def processors_here() -> list[Processor]:
    """The kinds of processor whose kernels this process can run, best first."""
    here = features_here()
    if here >= TILES and not may_use_tiles():
        here -= TILES
    return [processor for processor in PROCESSORS if processor.features <= here]


def may_use_tiles() -> bool:
    """Ask the system for permission to use AMX tiles, 8 KiB of state for each thread; later threads have it, too.

    Linux grants it to any process from 5.16 on (its documentation of XSTATE); systems that emulate Linux may not.
    """
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


def compiler() -> str | None:
    """Path of this machine's C++ compiler; None if there is none."""
    return next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)


def what_is_missing() -> str:
    """The missing requirement for compiling the kernels: a compiler, or the first missing header; "" if nothing is
    missing.
    """
    command = compiler()
    if command is None:
        return "a C++ compiler"
    includes = "".join(f"#include <{name}>\n" for name in _HEADERS)
    try:
        done = subprocess.run(
            [command, "-std=c++17", "-fsyntax-only", "-x", "c++", "-"],
            input=includes, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as reason:
        return f"a C++ compiler that runs: {reason}"
    if not done.returncode:
        return ""
    return next((line for line in done.stderr.splitlines() if "error" in line), "headers")


def fingerprint(processor: Processor) -> str:
    """Hash of the sources and flags of a processor's kernels; the library contains it (`djl_fingerprint`)."""
    sources = [path.read_text() for path in sorted((*SOURCES.rglob("*.h"), *SOURCES.rglob("*.cpp")))]
    return hashlib.sha256("\0".join((*sources, *_flags(processor))).encode()).hexdigest()[:16]


def is_current(path: Path, processor: Processor) -> bool:
    """Whether the library at `path` exists and is what `compile_kernels` would build from these sources."""
    return path.exists() and fingerprint(processor).encode() in path.read_bytes()


def is_whole(path: Path) -> bool:
    """Whether the library at `path` is as `compile_kernels` left it, to the last bit: a damaged one may crash."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-_DIGEST_BYTES]).digest() == content[-_DIGEST_BYTES:]


def compile_kernels(processor: Processor, path: Path, further_flags: Sequence[str] = ()) -> None:
    """Build the library at `path` atomically, even when several processes do so at once.

    The checksum is at the file's end, which loaders ignore. The file gets its name once all of it is on disk.

    Args:
        further_flags: of the compiler, after those of all builds.

    Raises:
        CompilationError: no compiler, a failed one, or no directory for the kernels.
    """
    command = compiler()
    if command is None:
        raise CompilationError("there is no C++ compiler (c++, g++ or clang++)")
    flags = (
        *_flags(processor),
        f"-iquote{SOURCES}",
        f'-DDJL_FINGERPRINT="{fingerprint(processor)}"',
        *further_flags,
    )

    def run(*arguments: str | Path) -> None:
        try:
            done = subprocess.run(
                [command, *flags, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as reason:
            raise CompilationError(f"{command} failed: {reason}") from reason
        if done.returncode:
            raise CompilationError(f"{command} failed: {done.stderr.strip().splitlines()[-1:]}")

    try:
        folder = Path(tempfile.mkdtemp(dir=path.parent))
    except OSError as reason:
        raise CompilationError(f"there is no place for the kernels: {reason}") from reason

    def compiled(source: Path) -> Path:
        made = folder / f"{source.stem}.o"
        run("-c", source, "-o", made)
        return made

    try:
        with ThreadPoolExecutor() as side_by_side:
            objects = list(side_by_side.map(compiled, SOURCES.rglob("*.cpp")))
        built = folder / path.name
        run("-shared", *objects, "-o", built)
        _seal(built)
        built.rename(path)
        _keep(path.parent)
    except OSError as reason:
        raise CompilationError(f"there is no place for the kernels: {reason}") from reason
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _seal(path: Path) -> None:
    """Append the checksum of a file to it, and have the system write it all."""
    digest = hashlib.sha256(path.read_bytes()).digest()
    with path.open("ab") as file:
        file.write(digest)
        file.flush()
        os.fsync(file.fileno())


def _keep(folder: Path) -> None:
    """Have the system write which files a folder has."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flags(processor: Processor) -> tuple[str, ...]:
    return (*_FLAGS, *processor.flags)
