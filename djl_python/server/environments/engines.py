"""Engines with environments of their own: lists and installs them.

Runs in `djl-serving engines`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ...config import ENGINES, ENVIRONMENT_STAMP, compiling_environment
from ...config.engines import Distribution, EngineRow, row_of
from ...core.errors import ConfigError
from ...core.types import SamplingParams
from ...ipc.protocol import Status
from .processes import PIP_INSTALL, Progress, failure, locked, made_whole, run, stamp


def engines_listed(cache_dir: str) -> str:
    """The list of `djl-serving engines`: each engine, its purpose, and where it is or how to install it."""
    return "\n".join(_described(row, cache_dir) for row in filter(None, map(row_of, ENGINES)))


def _described(engine: EngineRow, cache_dir: str) -> str:
    runtime = engine.runtime(cache_dir)
    if runtime is None:
        state = f"not here: {engine.remedy}"
    elif runtime.venv:
        made = msgspec.json.decode(Path(runtime.venv, ENVIRONMENT_STAMP).read_bytes())
        state = f"in {runtime.venv}: {', '.join(made['requirements'])}"
    else:
        state = f"here, in {sys.prefix}"
    lacks = sorted(set(SamplingParams.__struct_fields__) - engine.parameters)
    lines = [f"option.rolling_batch={engine.name}", f"  {engine.summary}", f"  {state}"]
    if lacks:
        lines.append(f"  without {', '.join(lacks)}")
    return "\n".join(lines) + "\n"


def installable_names() -> list[str]:
    """The engines that can be installed."""
    return [row.name for row in filter(None, map(row_of, ENGINES)) if row.distribution is not None]


def installable(name: str) -> tuple[EngineRow, Distribution]:
    """The engine of this name, and its packages.

    Raises:
        ConfigError: there is no such engine, or nothing to install for it.
    """
    engine = row_of(name)
    if engine is None or engine.distribution is None:
        raise ConfigError(f"engine {name!r} can't be installed; expected one of {', '.join(installable_names())}")
    return engine, engine.distribution


def _check_machine(name: str, distribution: Distribution, device: str) -> None:
    """Refuse what has no packages for this device, or this Python.

    Raises:
        ConfigError
    """
    packages = {"cpu": distribution.cpu, "cuda": distribution.cuda}
    if not packages[device]:
        devices = " and ".join(package for package, version in packages.items() if version)
        raise ConfigError(f"engine {name!r} has no packages for {device}; --device {devices} installs it for that")
    if distribution.pythons and sys.version_info[:2] not in distribution.pythons:
        made_for = " or ".join(".".join(map(str, python)) for python in distribution.pythons)
        here = ".".join(map(str, sys.version_info[:2]))
        raise ConfigError(f"engine {name!r} has packages for Python {made_for}, and this is {here}")


def _report(progress: Progress, what: str, line: str) -> None:
    progress(Status("loading", what, current=line))


async def install_engine(name: str, device: str, cache_dir: str, progress: Progress) -> Path:
    """Make an engine's environment, unless it is there; returns its directory.

    Args:
        device: "cpu" or "cuda": what it is installed for.
        progress: gets pip's lines.

    Raises:
        ConfigError: there is no such engine, no package of it for this device or this Python, or no place for it.
        ModelLoadError: it can't be installed; pip's last lines are in the message.
    """
    engine, distribution = installable(name)
    _check_machine(engine.name, distribution, device)
    venv = distribution.directory(engine.name, device, cache_dir)
    async with locked(venv.with_name(f"{venv.name}.lock"), progress) as lock:
        if not (venv / ENVIRONMENT_STAMP).is_file():
            async with made_whole(venv):
                await _install(engine, distribution, device, venv, progress, lock)
    return venv


async def _install(
    engine: EngineRow,
    distribution: Distribution,
    device: str,
    venv: Path,
    progress: Progress,
    lock: int,
) -> None:
    variables = compiling_environment(venv, distribution.extensions) if distribution.compiles else None
    for what, command in install_commands(engine.name, distribution, device, venv):
        progress(Status("loading", what))
        report = functools.partial(_report, progress, what)
        status, lines = await run(command, lock, variables, "/", report)
        if status:
            raise failure(command, status, lines)
    requirements = distribution.requirements(device)
    stamp(venv, {"engine": engine.name, "requirements": requirements, "python": sys.version})


def install_commands(
    name: str, distribution: Distribution, device: str, venv: Path
) -> Iterator[tuple[str, Sequence[str]]]:
    """(what it does, the command) of each that makes an engine's environment."""
    python = str(venv / "bin" / "python")
    indexes = [word for url in distribution.indexes for word in ("--extra-index-url", url)]
    yield "making an environment", [sys.executable, "-m", "venv", str(venv)]
    yield f"installing {name}", [python, *PIP_INSTALL, *indexes, *distribution.packages(device)]
    if distribution.from_source:
        isolated = "--no-build-isolation"  # its build dependencies have just been installed
        yield f"building {name}", [python, *PIP_INSTALL, isolated, *distribution.from_source]
    if device == "cpu" and distribution.unwanted_on_cpu:
        removal = [python, "-P", "-m", "pip", "--disable-pip-version-check", "uninstall", "--yes", "--quiet"]
        yield "removing what CPUs have no use for", [*removal, *distribution.unwanted_on_cpu]
    if distribution.compiles:
        yield f"compiling for {name}", [python, "-P", "-c", distribution.compiles]
