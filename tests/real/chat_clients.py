"""Python's and JavaScript's clients of chats, installed once into folders of their own outside the clone.

    python -m tests.real.chat_clients        makes them, in a few minutes and 0.3 GB, and prints their directories

`chat_clients.txt` names what Python's need beyond the clients of retrieval (`clients`), with which they share a path;
`chat_clients.json` and its lock file are npm's. They are kept like the trained weights (`fetch`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.real import clients
from tests.real.fetch import UnavailableError, cache, made_once, say

_REQUIREMENTS: Final = Path(__file__).with_name("chat_clients.txt")
#: npm's names of the files, and ours.
_NODE_FILES: Final = {
    "package.json": Path(__file__).with_name("chat_clients.json"),
    "package-lock.json": Path(__file__).with_name("chat_clients.lock.json"),
}
_PACKAGES: Final = "packages"


def python_environment(environ: Mapping[str, str] = os.environ) -> Path:
    """Where Python's are, or will be. Other requirements, or another Python, are another directory."""
    python = "{}.{}".format(*sys.version_info)
    return cache(environ) / f"chat-clients-{zlib.crc32(_REQUIREMENTS.read_bytes()):08x}-{python}"


def node_environment(environ: Mapping[str, str] = os.environ) -> Path:
    """Where JavaScript's are, or will be."""
    files = b"".join(file.read_bytes() for file in _NODE_FILES.values())
    return cache(environ) / f"chat-clients-{zlib.crc32(files):08x}-node"


def python_path(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The folders of which PYTHONPATH has to be, for a program that uses Python's clients."""
    return [python_environment(environ) / _PACKAGES, clients.packages(environ)]


def fetch_python(environ: Mapping[str, str] = os.environ) -> Path:
    """Install Python's, if they are not there yet.

    Raises:
        UnavailableError
    """

    def make(made: Path, folder: Path) -> None:
        say("installing Python's clients of chats, which takes a minute")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet", "--retries", "1"]
        options = ["--no-deps", "--only-binary=:all:", "--target", str(made / _PACKAGES), "-r", str(_REQUIREMENTS)]
        _run("pip", [*pip, "install", *options], folder)

    clients.fetch(environ)
    return made_once(python_environment(environ), make)


def fetch_node(environ: Mapping[str, str] = os.environ) -> Path:
    """Install JavaScript's, if they are not there yet. None of their packages runs a program of its own here.

    Raises:
        UnavailableError
    """

    def make(made: Path, folder: Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise UnavailableError("there is no npm")
        say("installing JavaScript's clients of chats, which takes a minute")
        made.mkdir()
        for name, file in _NODE_FILES.items():
            shutil.copy(file, made / name)
        _run("npm", [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], made)

    return made_once(node_environment(environ), make)


def _run(name: str, command: list[str], folder: Path) -> None:
    ended = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if ended.returncode != 0:
        said = ended.stdout.decode(errors="replace").strip().splitlines() or ["nothing"]
        raise UnavailableError(f"{name} can't install it, and says: {said[-1]}")


def main() -> None:
    """Command line."""
    failed = False
    for language, fetch in (("Python", fetch_python), ("JavaScript", fetch_node)):
        try:
            print(fetch())
        except UnavailableError as exc:
            failed = True
            say(f"{language}'s clients of chats: {exc}. Their tests are skipped")
    sys.exit(failed)


if __name__ == "__main__":
    main()
