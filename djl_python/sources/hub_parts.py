"""The large files of a repository of the Hugging Face Hub, and how much of each is in the hub client's cache.

Runs in the thread that downloads. The client keeps a file as `blobs/SHA256`, and while it comes as
`blobs/SHA256....incomplete`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.model_files.download_part import DownloadPart


@dataclass(frozen=True)
class HubFile:
    """A file in the hub's large file storage: small ones have no SHA-256 there."""

    sha256: str
    size: int
    blobs: Path

    def part(self) -> DownloadPart:
        """How much of it is here."""
        files = [self.blobs / self.sha256, *self.blobs.glob(f"{self.sha256}*.incomplete")]
        done = max(map(_size, files))
        return DownloadPart(f"sha256:{self.sha256}", self.size, min(done, self.size))


def large_files(repo: str, revision: str, patterns: Sequence[str], without: Sequence[str]) -> list[HubFile]:
    """The large files whose names fit the patterns; none if the hub can't be reached: the cache may have all.

    Raises:
        RepositoryNotFoundError and others: the hub client's, where the hub says that there is nothing to download.
    """
    from huggingface_hub import HfApi, constants, errors
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

    try:
        info = HfApi().model_info(repo, revision=revision or None, files_metadata=True)
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        raise
    except (errors.HTTPError, errors.OfflineModeIsEnabled, OSError):  # type: ignore[attr-defined]
        return []
    blobs = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model") / "blobs"
    large = {file.rfilename: file.lfs for file in info.siblings or () if file.lfs is not None}
    names = filter_repo_objects(large, allow_patterns=list(patterns), ignore_patterns=list(without))
    return [HubFile(large[name].sha256, large[name].size, blobs) for name in names]


def parts(files: Iterable[HubFile]) -> list[DownloadPart]:
    """How much of each is here."""
    return [file.part() for file in files]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # it has not begun, or has just been renamed
        return 0
