"""Engines' environments for tests, which are made once and kept outside the clone, as trained weights are.

    python -m tests.real.engines         makes them, in some minutes and 3 GB each, and prints their directories

`make test-all` does this before the tests, which only look there: those of an engine that is not there are skipped.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from djl_python.config import ENVIRONMENT_STAMP
from djl_python.core.errors import ModelLoadError
from djl_python.ipc.protocol import Status
from djl_python.server.environments.engines import install_engine, installable
from tests.real.fetch import cache

NAMES = ("vllm", "deepspeed")


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """What SERVING_DOWNLOAD_DIR has to be for a server to find them."""
    return cache(environ) / "server"


def environment(name: str) -> Path:
    """Where an engine's is, or will be."""
    engine, distribution = installable(name)
    return distribution.directory(engine.name, "cpu", str(cache_dir()))


def lacking(name: str) -> str:
    """Why tests of an engine are skipped; "" where it is there."""
    if (environment(name) / ENVIRONMENT_STAMP).is_file():
        return ""
    return f"{name} has not been installed: `make test-all` and `python -m tests.real.engines` do, and say why not"


def _print(status: Status) -> None:
    if not status.current:  # else pip's lines, which are thousands
        print(f"for tests: {status.detail}", file=sys.stderr)


def _install(name: str) -> str:
    """Install an engine; why that can't be done, "" if it is there."""
    try:
        print(asyncio.run(install_engine(name, "cpu", str(cache_dir()), _print)))
    except ModelLoadError as error:
        return f"{name} can't be installed here, its tests are skipped: {error.message}"
    return ""


if __name__ == "__main__":
    sys.exit("\n".join(filter(None, map(_install, NAMES))))
