"""Memory, disk, descriptors and ports. Runs in `djl-serving doctor`."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from ..config import Address, ServerConfig
from ..config.environment import cache_directory
from ..config.sources import cache_root
from ..core.errors import ConfigError
from ..engine.devices.free_memory import available_bytes
from .finding import Finding, Level, mib

_SECTION: Final = "memory and disk"
#: A model with a billion weights in bf16, its cache and its processes take about this much.
_LITTLE_MEMORY: Final = 4 << 30
_LITTLE_DISK: Final = 10 << 30
_FEW_DESCRIPTORS: Final = 4096


def memory() -> Iterator[Finding]:
    """How much a model may take."""
    total, free = int(psutil.virtual_memory().total), available_bytes()
    value = f"{mib(free)} free of {mib(total)}"
    if free < _LITTLE_MEMORY:
        yield Finding(
            *(_SECTION, "memory", value, Level.HINT),
            "option.quantize=int8 or int4 has models take less; option.kv_cache_memory_mb bounds their cache",
        )
    else:
        yield Finding(_SECTION, "memory", value)
    if used := int(psutil.swap_memory().used):
        yield Finding(
            *(_SECTION, "swap", f"{mib(used)} in use", Level.HINT),
            "a model whose weights are swapped out answers very slowly: end what else takes memory",
        )


def disk() -> Iterator[Finding]:
    """Where downloads and environments go, and whether they can."""
    named = cache_directory()
    try:
        folder = cache_root(Path(named) if named else None)
    except ConfigError as exc:
        yield Finding(_SECTION, "downloads", exc.message, Level.BROKEN, "set SERVING_DOWNLOAD_DIR to a directory")
        return
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    value = f"{folder}: {mib(free)} free"
    if problem := _not_writable(there):
        yield Finding(
            *(_SECTION, "downloads", f"{folder}: {problem}", Level.BROKEN),
            "set SERVING_DOWNLOAD_DIR (and HF_HOME, for models of the hub) to a directory that this user may write",
        )
    elif free < _LITTLE_DISK:
        advice = "a model of 7 billion weights takes 15 GiB: SERVING_DOWNLOAD_DIR and HF_HOME say where they go"
        yield Finding(_SECTION, "downloads", value, Level.HINT, advice)
    else:
        yield Finding(_SECTION, "downloads", value)
    if problem := _not_writable(None):
        yield Finding(_SECTION, "temporary files", problem, Level.BROKEN, "set TMPDIR to a directory with room")
    else:
        yield Finding(_SECTION, "temporary files", tempfile.gettempdir())


def _not_writable(folder: Path | None) -> str:
    """Why no file can be made in a directory, by default the one for temporary files; "" if one can."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
            file.flush()
    except OSError as exc:
        return exc.strerror or str(exc)
    return ""


def descriptors() -> Iterator[Finding]:
    """How many connections and files a process may have: the server raises the limit as far as it may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= most < _FEW_DESCRIPTORS:
        yield Finding(
            *("ports", "open files", f"{most} at most", Level.HINT),
            "each connection takes one: raise the limit (ulimit -Hn; systemd: LimitNOFILE; Docker: --ulimit nofile)",
        )
    else:
        yield Finding("ports", "open files", "unlimited" if most < 0 else f"{most} at most")


def ports(config: ServerConfig) -> Iterator[Finding]:
    """Whether the server could listen where it is to listen."""
    addresses = {"inference": config.inference_address, "management": config.management_address}
    for name, address in addresses.items():
        if address is None or (name == "management" and address == config.inference_address):
            continue
        problem = _problem(address)
        if not problem:
            yield Finding("ports", name, f"{address} is free")
        elif problem == errno.EADDRINUSE:
            advice = f"unless that is your server: another {'path' if address.unix_path else 'port (-p)'}"
            yield Finding("ports", name, f"{address} is in use", Level.HINT, advice)
        else:
            yield Finding("ports", name, f"{address}: {os.strerror(problem)}", Level.BROKEN, "listen somewhere else")


def _problem(address: Address) -> int:
    """Why nobody can listen there now, as an errno; 0 if somebody can."""
    try:
        if address.unix_path:
            folder = Path(address.unix_path).parent
            in_use = Path(address.unix_path).exists()
            return errno.EADDRINUSE if in_use else 0 if os.access(folder, os.W_OK) else errno.EACCES
        entries = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, where = entries[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except socket.gaierror:
        return errno.EADDRNOTAVAIL
    except OSError as exc:
        return exc.errno or errno.EINVAL
    return 0
