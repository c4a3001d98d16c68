"""The models that have been downloaded: in the hub client's cache, and in this project's.

Runs in the process of a command.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..config.environment import cache_directory
from ..config.sources.places import cache_root


class Download(msgspec.Struct, frozen=True):
    """A downloaded model.

    Attributes:
        name: owner/model of the hub, or the name of an archive or a directory.
        bytes: of its files; of all revisions, of a model of the hub.
    """

    name: str
    bytes: int
    path: str


def downloads() -> list[Download]:
    """The downloaded models, by name.

    Raises:
        ConfigError: the cache's directory can't be determined.
    """
    chosen = cache_directory()
    root = cache_root(Path(chosen) if chosen else None)
    return sorted([*_of_the_hub(), *_unpacked(root)], key=lambda download: download.name)


def _of_the_hub() -> Iterator[Download]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        cache = scan_cache_dir()
    except CacheNotFound:  # nothing has been downloaded
        return
    for repo in cache.repos:
        if repo.repo_type == "model":
            yield Download(repo.repo_id, repo.size_on_disk, str(repo.repo_path))


def _unpacked(root: Path) -> Iterator[Download]:
    """Directories of archives and buckets, see `cache.cached`."""
    for key in root.glob("[0-9a-f]" * 16):
        for directory in key.iterdir():
            if directory.is_dir() and not directory.name.startswith("."):
                size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
                yield Download(directory.name, size, str(directory))
