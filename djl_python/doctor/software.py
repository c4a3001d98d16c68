"""Versions, requirements, extras and engines. Runs in `djl-serving doctor`."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterator
from typing import Final

from packaging.requirements import Requirement
from packaging.version import Version

from .. import __version__
from ..config import ENGINES, has_gpu
from ..config.engines import row_of
from ..config.environment import cache_directory, is_here
from .finding import Finding, Level

_PROJECT: Final = "djl-serving"
_SECTION: Final = "versions"
#: Extras that users of a server want: their name, what they are for, a module of what they bring, how to have them.
_EXTRAS: Final = (
    ("images", "images in chats", "PIL", "pip install 'djl-serving[images]'"),
    ("s3", "models in s3://", "boto3", "pip install 'djl-serving[s3]'"),
    ("tls", "self-signed certificates (djl-serving tls)", "cryptography", "pip install 'djl-serving[tls]'"),
    ("tracing", "OpenTelemetry traces", "opentelemetry.sdk.trace", "pip install 'djl-serving[tracing]'"),
)


def versions() -> Iterator[Finding]:
    """This project, Python, the system, and what this project requires."""
    yield Finding(_SECTION, _PROJECT, __version__)
    yield Finding(_SECTION, "Python", f"{platform.python_version()} ({sys.executable})")
    libc = " ".join(platform.libc_ver()) or "C library unknown"
    yield Finding(_SECTION, "system", f"{platform.system()} {platform.release()}, {platform.machine()}, {libc}")
    try:
        requirements = importlib.metadata.requires(_PROJECT) or []
    except importlib.metadata.PackageNotFoundError:
        yield Finding(
            *(_SECTION, "requirements", "not known", Level.HINT),
            "djl-serving is not installed but only found: pip install djl-serving, or pip install -e . in a checkout",
        )
        return
    yield from _required(map(Requirement, requirements))


def _required(requirements: Iterator[Requirement]) -> Iterator[Finding]:
    for requirement in requirements:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(_SECTION, requirement.name, "missing", Level.BROKEN, f"pip install '{_plain(requirement)}'")
            continue
        if requirement.specifier.contains(Version(version), prereleases=True):
            yield Finding(_SECTION, requirement.name, version)
        else:
            wrong = f"{version}, expected {requirement.specifier}"
            yield Finding(_SECTION, requirement.name, wrong, Level.BROKEN, f"pip install '{_plain(requirement)}'")


def _plain(requirement: Requirement) -> str:
    return f"{requirement.name}{requirement.specifier}"


def extras() -> Iterator[Finding]:
    """What may be installed beside."""
    for name, what, module, remedy in _EXTRAS:
        yield Finding(
            "extras", name, f"installed: {what}" if is_here(module) else f"not installed; for {what}: {remedy}"
        )


def engines() -> Iterator[Finding]:
    """What option.rolling_batch can name."""
    for row in filter(None, map(row_of, ENGINES)):
        runtime = row.runtime(cache_directory())
        if runtime is not None:
            yield Finding("engines", row.name, f"in {runtime.venv}" if runtime.venv else "installed")
        elif row.name == "vllm" and has_gpu():
            advice = "djl-serving engines install vllm: models that leave option.rolling_batch to auto then run on it"
            yield Finding("engines", row.name, "not installed", Level.HINT, advice)
        else:
            yield Finding("engines", row.name, f"not installed; {row.remedy}")
