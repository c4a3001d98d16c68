"""Compiles the kernels for a kind of processor: when a wheel is built, or in an engine process whose wheel has none.

Imports nothing from the package: setup.py runs this before the package is installed.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

#: The folder of the kernels' sources, where those that come with the package lie, too.
SOURCES: Final = Path(__file__).parent / "kernels"
_FLAGS: Final = ("-std=c++17", "-O3", "-fPIC", "-pthread")
_TIMEOUT_S: Final = 300
_AVX2: Final = frozenset({"avx2", "fma", "f16c"})
_AVX512: Final = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_AVX512_BF16: Final = _AVX512 | {"avx512_vnni", "avx512_bf16"}
#: AMX: a process has to ask the system for permission to use tiles.
TILES: Final = frozenset({"amx_tile", "amx_bf16", "amx_int8"})


class CompilationError(Exception):
    """There is no compiler, it failed, or there is no place for the kernels; the message says which."""


class Processor(NamedTuple):
    """A kind of processor: all those that run the same machine code.

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
PROCESSORS: Final = tuple(one for one in _ALL if sys.platform == "linux" and one.machine == platform.machine())


def features_here() -> set[str]:
    """CPU features of this machine, as /proc/cpuinfo names them; empty if it names none."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return set(next((line for line in lines if line.startswith(("flags", "Features"))), "").split())


def compiler() -> str | None:
    """Path of this machine's C++ compiler; None if there is none."""
    return next((found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), None)


def fingerprint(processor: Processor) -> str:
    """Hash of the sources and flags of a processor's kernels; the library contains it (`djl_fingerprint`)."""
    sources = [path.read_text() for path in sorted((*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")))]
    return hashlib.sha256("\0".join((*sources, *_flags(processor))).encode()).hexdigest()[:16]


def is_current(path: Path, processor: Processor) -> bool:
    """Whether the library at `path` exists and is what `compile_kernels` would build from these sources."""
    return path.exists() and fingerprint(processor).encode() in path.read_bytes()


def compile_kernels(processor: Processor, path: Path, further_flags: Sequence[str] = ()) -> None:
    """Build the library at `path` atomically, even when several processes do so at once.

    Args:
        further_flags: of the compiler, after those of all builds.

    Raises:
        CompilationError: there is no compiler, it failed, or there is no place for the kernels.
    """
    command = compiler()
    if command is None:
        raise CompilationError("there is no C++ compiler (c++, g++ or clang++)")
    flags = (*_flags(processor), f'-DDJL_FINGERPRINT="{fingerprint(processor)}"', *further_flags)

    def run(*arguments: str | Path) -> None:
        try:
            done = subprocess.run(
                [command, *flags, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
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
            objects = list(side_by_side.map(compiled, SOURCES.glob("*.cpp")))
        built = folder / path.name
        run("-shared", *objects, "-o", built)
        built.rename(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _flags(processor: Processor) -> tuple[str, ...]:
    return (*_FLAGS, *processor.flags)
