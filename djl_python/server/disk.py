"""What stores on disk need: files that are written whole or not at all, and a directory for one server alone.

Used in the front end. `replace_file` blocks, and is called in threads.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from ..batch.journal import sync_directory


def locked(path: Path) -> IO[str]:
    """A file, opened and locked by this process.

    Raises:
        BlockingIOError: another process has locked it.
        OSError: it can't be opened.
    """
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that the old content or the new is there, whatever happens."""
    beside = path.with_name(f"{path.name}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    sync_directory(path.parent)
