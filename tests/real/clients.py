"""Cohere's, langchain's and llama-index's clients, installed once into a folder of their own outside the clone.

    python -m tests.real.clients        makes it, in a minute and 0.5 GB, and prints its directory

They need older versions than this project's tests do (langchain-huggingface: huggingface_hub below 2). `clients.txt`
names every package, so that pip resolves nothing. It is kept like the trained weights (`fetch`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.real.fetch import UnavailableError, cache, made_once, say

_REQUIREMENTS: Final = Path(__file__).with_name("clients.txt")
_PACKAGES: Final = "packages"


def environment(environ: Mapping[str, str] = os.environ) -> Path:
    """Where it is, or will be. Other requirements, or another Python, are another directory."""
    python = "{}.{}".format(*sys.version_info)
    return cache(environ) / f"clients-{zlib.crc32(_REQUIREMENTS.read_bytes()):08x}-{python}"


def packages(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder that PYTHONPATH has to be for a program that uses the clients."""
    return environment(environ) / _PACKAGES


def fetch(environ: Mapping[str, str] = os.environ) -> Path:
    """Install what is not there yet.

    Raises:
        UnavailableError
    """

    def make(made: Path, folder: Path) -> None:
        say("installing clients of retrieval, which takes a minute")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet", "--retries", "1"]
        options = ["--no-deps", "--only-binary=:all:", "--target", str(made / _PACKAGES), "-r", str(_REQUIREMENTS)]
        ended = subprocess.run(
            [*pip, "install", *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if ended.returncode != 0:
            said = ended.stdout.decode(errors="replace").strip().splitlines() or ["nothing"]
            raise UnavailableError(f"pip can't install it, and says: {said[-1]}")

    return made_once(environment(environ), make)


def main() -> None:
    """Command line."""
    try:
        print(fetch())
    except UnavailableError as exc:
        say(f"clients of retrieval: {exc}. Their tests are skipped")
        sys.exit(1)


if __name__ == "__main__":
    main()
