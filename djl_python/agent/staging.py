"""Directories of files that are on their way to this machine, and what killed agents have left of theirs.

Runs in the agent; `remove_left` may take long, and is called in a thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PREFIX: Final = ".partial-"
_LOCK: Final = "lock"
#: A younger directory may be one whose owner is about to lock it.
_MIN_AGE_S: Final = 60.0


@contextlib.contextmanager
def staging_in(parent: Path) -> Iterator[Path]:
    """An empty directory, to be filled and renamed to one of `parent`'s; removed at the end if it has not been.

    Raises:
        OSError: it can't be made.
    """
    parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    try:
        with (staging / _LOCK).open("w") as lock:
            with contextlib.suppress(OSError):  # a file system without locks: there `remove_left` removes nothing
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            files = staging / "files"
            files.mkdir()
            yield files
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def remove_left(parent: Path) -> None:
    """Remove the directories of processes that were killed: nobody holds their locks."""
    for staging in parent.glob(f"{_PREFIX}*"):
        with (
            contextlib.suppress(OSError),
            (staging / _LOCK).open("r+") as lock,
        ):  # another user's, held, or gone already
            if time.time() - os.fstat(lock.fileno()).st_mtime > _MIN_AGE_S:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(staging)
