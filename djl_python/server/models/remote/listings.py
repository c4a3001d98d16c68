"""The local directories that a model's configuration names, listed for machines that have to fetch them.

Runs in threads of the front end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ....config import ModelConfig
from ....core.errors import ModelLoadError
from ....ipc.remote_protocol import FilePart, FileRequest, Listing
from ....sources import stays_here

#: Folders that no worker reads.
_LEFT_OUT: Final = {"__pycache__", ".git"}


def listings_of(config: ModelConfig) -> list[Listing]:
    """The directories that a worker of this model reads, without those that are below another.

    A model that comes from a URL is fetched from there, and so is a checkpoint that `option.model_id` names by a URL or
    an id.

    Raises:
        ModelLoadError: one can't be read.
    """
    named = [Path(source) for source in config.adapters.values()]
    if config.path and stays_here(config.url):
        named.insert(0, Path(config.path))
    if config.option.model_id.startswith("/"):
        named.append(Path(config.option.model_id))
    listings: list[Listing] = []
    for path in named:
        if not any(_is_within(path, Path(listing.path)) for listing in listings):
            listings.append(_listed(path))
    return listings


def part(listings: list[Listing], request: FileRequest) -> FilePart:
    """A part of a file; nothing but what is listed can be asked for, and as it was listed: else parts of two mix."""
    try:
        listing = listings[request.listing]
        name, size, changed_ns = listing.files[request.file]
        with (Path(listing.path) / name).open("rb") as file:
            file.seek(request.offset)
            data, status = file.read(request.size), os.fstat(file.fileno())
        if (status.st_size, status.st_mtime_ns) != (size, changed_ns):
            return FilePart(b"", "it has changed meanwhile")
        return FilePart(data)
    except (OSError, IndexError, ValueError) as exc:
        return FilePart(b"", exc.strerror or "" if isinstance(exc, OSError) else "there is no such part")


def _is_within(path: Path, directory: Path) -> bool:
    """Whether a path is a directory's or one below it. One that leaves it again (`..`) is not."""
    return path.is_relative_to(directory) and ".." not in path.relative_to(directory).parts


def _listed(path: Path) -> Listing:
    try:
        if path.is_file():  # one of several in its directory, such as GGUF files
            return Listing(str(path.parent), [_entry(path.parent, path.name)])
        if not path.is_dir():
            raise ModelLoadError(f"{path}: there is no such directory, which its workers elsewhere need")
        return Listing(str(path), sorted(_entry(path, name) for name in _files(path)))
    except OSError as exc:
        raise ModelLoadError(f"{exc.filename}: {exc.strerror}") from exc


def _files(root: Path) -> Iterator[str]:
    """The files below a directory; links are followed, each directory is entered once."""
    entered: set[str] = set()
    for folder, folders, files in os.walk(root, followlinks=True):
        if (real := os.path.realpath(folder)) in entered:
            folders.clear()
            continue
        entered.add(real)
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        for name in files:
            if (Path(folder) / name).is_file():  # neither a socket nor a link to nowhere
                yield os.path.relpath(os.path.join(folder, name), root)


def _entry(root: Path, name: str) -> tuple[str, int, int]:
    status = (root / name).stat()
    return name, status.st_size, status.st_mtime_ns
