"""Where downloads are kept, and what files are archives. Used in every process."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ...core.errors import ConfigError

ARCHIVE_SUFFIXES: Final = (".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar", ".mar")


def cache_root(cache_dir: Path | None) -> Path:
    """Where downloads are kept: `cache_dir`, or below the home directory.

    Raises:
        ConfigError: neither is there.
    """
    try:
        return cache_dir or Path.home() / ".cache" / "djl-serving"
    except RuntimeError:  # a container's user may be a number only
        raise ConfigError("this user has no home directory; DJL_CACHE_DIR says where downloads go") from None
