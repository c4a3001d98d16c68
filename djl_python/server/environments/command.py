"""`djl-serving engines`: lists engines, and installs one.

Runs in the front end's process, without a server.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Final

from ...config import has_gpu
from ...config.environment import cache_directory
from ...ipc.protocol import Status
from .engines import engines_listed, install_engine, installable, installable_names

_EVERY_S: Final = 5.0


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError, ModelLoadError: an engine can't be installed.
    """
    options = parser().parse_args(arguments)
    if options.action is None:
        print(engines_listed(cache_directory()), end="")
        return 0
    device = options.device or ("cuda" if has_gpu() else "cpu")
    venv = asyncio.run(install_engine(options.engine, device, cache_directory(), _Progress()))
    print(f"{options.engine} for {device} is in {venv}: option.rolling_batch={options.engine} takes it")
    if also := installable(options.engine)[1].also:
        print(f"beside it there has to be {also}, which pip can't install")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="djl-serving engines",
        description="Show the engines that option.rolling_batch can name, where they are, and how to install others. "
        "An engine with packages of its own gets an environment of its own below the cache directory.",
    )
    actions = made.add_subparsers(dest="action", metavar="install")
    install = actions.add_parser("install", help="install an engine", description="Install an engine, with pip.")
    install.add_argument("engine", help=f"its name: {', '.join(installable_names())}")
    install.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is a GPU")
    return made


class _Progress:
    """Prints each step, and every few seconds pip's last line."""

    def __init__(self) -> None:
        self._printed, self._printed_s = "", 0.0

    def __call__(self, status: Status) -> None:
        now_s = time.monotonic()
        if status.detail == self._printed and now_s - self._printed_s < _EVERY_S:
            return
        self._printed, self._printed_s = status.detail, now_s
        print(f"{status.detail}: {status.current}" if status.current else status.detail, file=sys.stderr, flush=True)
