"""A process's own folder for weights on NVMe, which is removed with it. Runs in the engine process, at load.

DeepSpeed's own folder below `nvme_path` has the rank's name alone: models, and workers of one model, would overwrite
one another's weights there, and a killed process leaves gigabytes behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Final

from ...core.errors import ModelLoadError

_PREFIX: Final = "djl-zero-"
#: Held by the folder's process, as long as it lives.
_LOCK: Final = ".lock"


class SwapFolder:
    """A folder below a directory; leftovers of killed processes are removed first.

    Raises:
        ModelLoadError: the directory can't be written to.
    """

    def __init__(self, directory: Path) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            _remove_left(directory)
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=directory))
            lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as exc:
            raise ModelLoadError(f"{exc.filename or directory}: {exc.strerror}") from exc
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._lock = lock

    def removed_with(self, owner: object) -> None:
        """Remove the folder when `owner` goes, or the process ends."""
        weakref.finalize(owner, _remove, self.path, self._lock)


def _remove(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def _remove_left(directory: Path) -> None:
    """Remove the folders whose processes have ended: nobody holds their locks."""
    for folder in directory.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # of another user's, or gone meanwhile
            lock = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            except BlockingIOError:
                continue
            finally:
                os.close(lock)
