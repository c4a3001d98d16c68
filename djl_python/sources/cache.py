"""The cache of what is downloaded or unpacked: a directory is there whole or not at all, whoever fills it at once.

Runs in the front end and in workers.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ..config.sources.places import ARCHIVE_SUFFIXES, cache_root
from ..core.errors import ConfigError, PayloadError
from ..formats.archives import unpack


def cached(cache_dir: Path | None, name: str, key: str, fill: Callable[[Path], None]) -> Path:
    """The directory for (name, key) in the cache. If it does not exist, `fill` writes its content first."""
    destination = cache_root(cache_dir) / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}" / _stem(name)
    if destination.is_dir():
        return destination
    with staging_in(destination.parent) as staging:
        fill(staging)
        try:
            staging.rename(destination)
        except OSError:
            if not destination.is_dir():  # else another process was first: its copy is as good
                raise
    return destination


@contextlib.contextmanager
def staging_in(parent: Path) -> Iterator[Path]:
    """A new directory in `parent`, removed at the end unless it has been renamed.

    The system's temporary directory may have no room for a model.

    Raises:
        ConfigError: the directory can't be created.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".partial-", dir=parent))
    except OSError as exc:
        raise ConfigError(f"{parent}: {exc.strerror}; DJL_CACHE_DIR says where downloads go") from exc
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def unpack_into(archive: Path, staging: Path, shown: str = "") -> None:
    """Unpack a zip or tar file. An entry that would land outside of `staging` is an error, not skipped.

    Raises:
        ConfigError: neither zip nor tar, damaged, hostile, or too large.
    """
    try:
        unpack(archive, staging)
    except PayloadError as exc:
        raise ConfigError(f"{shown or archive}: {exc.message}") from exc


def _stem(name: str) -> str:
    suffix = next((suffix for suffix in ARCHIVE_SUFFIXES if name.lower().endswith(suffix)), "")
    return name.removesuffix(name[len(name) - len(suffix) :]) or "model"


def one_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
