"""Tells how far a download is, at most every quarter of a second for each of its files.

Runs in the thread that downloads, and beside it in one that looks at files where nothing else tells their growth.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ..core.model_files.download_part import DownloadPart, DownloadProgress

#: Seconds between two reports.
_EACH_S: Final = 0.25


class Counted:
    """A file whose bytes are counted as they come, in any threads.

    Args:
        progress: None: nobody is told.
        place: identifies the file, as its content is not known yet.
        total_bytes: 0 where it is not known.
    """

    def __init__(self, progress: DownloadProgress | None, place: str, total_bytes: int) -> None:
        self._progress = progress
        self._digest = f"sha256:{hashlib.sha256(place.encode()).hexdigest()}"
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._told_s = 0.0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """So many bytes more have come."""
        with self._lock:
            self._done_bytes += size
            now_s = time.monotonic()
            if self._progress is None or (now_s < self._told_s + _EACH_S and self._done_bytes != self._total_bytes):
                return
            self._told_s = now_s
            self._progress(DownloadPart(self._digest, self._total_bytes, self._done_bytes))


@contextlib.contextmanager
def watched(look: Callable[[], Iterable[DownloadPart]], progress: DownloadProgress) -> Iterator[None]:
    """Tell, in a thread, what has changed of what `look` finds; and once more at the end, unless there is an error."""
    told: dict[str, DownloadPart] = {}
    over = threading.Event()

    def tell() -> None:
        for part in look():
            if told.get(part.digest) != part:
                told[part.digest] = part
                progress(part)

    def watch() -> None:
        while not over.wait(_EACH_S):
            tell()

    watching = threading.Thread(target=watch, name="download-progress", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
    tell()
