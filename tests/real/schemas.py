"""Public JSON schemas, as people write them: fetched once from the Python package index, with check-jsonschema's wheel.

python -m tests.real.schemas        prints the directory
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
_REQUIREMENTS: Final = Path(__file__).with_name("schemas.txt")


def schemas(environ: Mapping[str, str] = os.environ) -> Path:
    """Where they are, or will be: a directory of .json files."""
    return cache(environ) / f"schemas-{_VERSION}"


def fetch(environ: Mapping[str, str] = os.environ) -> Path:
    """Fetch what is not there yet.

    Raises:
        UnavailableError
    """

    def make(made: Path, folder: Path) -> None:
        (wheel,) = download(_REQUIREMENTS, folder, cache(environ), "1 MB", "--only-binary=:all:").glob("*.whl")
        made.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if "/vendor/" in name and name.endswith(".json"):
                    (made / Path(name).name).write_bytes(archive.read(name))

    return made_once(schemas(environ), make)


def main() -> None:
    """Command line."""
    try:
        print(fetch())
    except UnavailableError as reason:
        say(f"schemas: {reason}. Their tests are skipped")
        sys.exit(1)


if __name__ == "__main__":
    main()
