"""How far a download is. Made in the thread that downloads, read in the front end's event loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class DownloadPart:
    """A file that is being downloaded, or has been.

    Attributes:
        digest: "sha256:" and 64 hexadecimal digits: of the file, where that is known beforehand, or else of its place.
        total_bytes: its size; 0 where that is not known.
    """

    digest: str
    total_bytes: int
    done_bytes: int


#: Called now and then with a part that has changed, in any thread.
DownloadProgress = Callable[[DownloadPart], None]
