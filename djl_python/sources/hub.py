"""Models of the Hugging Face Hub, with its client.

Runs in the front end and in workers.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from ..core.errors import ConfigError, SourceError
from ..core.model_files.download_part import DownloadProgress
from ..core.names import did_you_mean
from ..gguf import SUFFIX, models_in
from .cache import one_line
from .gguf_files import described, is_projector
from .hub_parts import large_files, parts
from .progress import watched

#: Files of a hub repository that a checkpoint needs. Second copies of the weights are not downloaded.
_HUB_FILES: Final = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.py"]
_HUB_DUPLICATES: Final = ["original/*", "consolidated*.safetensors", "onnx/*"]


class HubSource:
    """A repository of the Hugging Face Hub, in the hub client's own cache.

    `owner/name:Q4_K_M` is the GGUF file of that kind in the repository, `owner/name:FILE.gguf` the file.
    """

    def __init__(self, cache_dir: Path | None = None, progress: DownloadProgress | None = None) -> None:
        self._cache_dir = cache_dir
        self._progress = progress

    def fetch(self, uri: str, revision: str = "") -> Path:
        repo, _, wanted = uri.removeprefix("hf://").strip("/").partition(":")
        with _explained(repo, revision):
            return self._gguf(repo, revision, wanted) if wanted else self._checkpoint(repo, revision)

    def _checkpoint(self, repo: str, revision: str) -> Path:
        path = self._download(repo, revision, _HUB_FILES)
        if not any(path.glob("*.safetensors")):
            path = self._download(repo, revision, [*_HUB_FILES, "*.bin"])
        if not (path / "config.json").is_file() and (files := _files(repo, revision)):
            raise ConfigError(f"hub model {repo} has GGUF files: expected one of them, as in hf://{repo}:{files[0]}")
        return path

    def _gguf(self, repo: str, revision: str, wanted: str) -> Path:
        patterns = _patterns(wanted)
        path = self._download(repo, revision, patterns)
        models = _models_in(path, patterns)
        if not models:
            files = _files(repo, revision)
            there = f"; there is {', '.join(files)}{did_you_mean(wanted, files)}" if files else ""
            raise SourceError(f"hub model {repo} has no GGUF file {wanted!r}{there}")
        if len(models) > 1:
            names = ", ".join(str(file.relative_to(path)) for file in models)
            raise ConfigError(f"hub model {repo} has {len(models)} GGUF files {wanted!r}: {names}; expected one's name")
        return described(models[0], self._cache_dir)

    def _download(self, repo: str, revision: str, patterns: list[str]) -> Path:
        from huggingface_hub import snapshot_download

        telling: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self._progress is not None:
            files = large_files(repo, revision, patterns, _HUB_DUPLICATES)
            telling = watched(functools.partial(parts, files), self._progress)
        with telling:
            directory = snapshot_download(
                repo, revision=revision or None, allow_patterns=patterns, ignore_patterns=_HUB_DUPLICATES
            )
        return Path(directory)

    def downloaded(self, uri: str, revision: str = "") -> Path | None:
        """The directory of a checkpoint whose files are on this machine already; None: they are not."""
        from huggingface_hub import errors, snapshot_download

        repo, _, wanted = uri.removeprefix("hf://").strip("/").partition(":")
        patterns = _patterns(wanted) if wanted else _HUB_FILES
        try:
            directory = snapshot_download(
                repo,
                revision=revision or None,
                local_files_only=True,
                allow_patterns=patterns,
                ignore_patterns=_HUB_DUPLICATES,
            )
        except (errors.HFValidationError, errors.LocalEntryNotFoundError):
            return None
        path = Path(directory)
        if not wanted:
            return path
        models = _models_in(path, patterns)
        return described(models[0], self._cache_dir) if len(models) == 1 else None


def _patterns(wanted: str) -> list[str]:
    """Patterns of the files that a name, or a kind such as Q4_K_M, stands for; also where there are several parts."""
    if wanted.lower().endswith(SUFFIX):
        stem, part, _ = wanted.rpartition("-of-")
        return [f"{stem[:-6]}-*-of-*{SUFFIX}" if part else wanted]
    kinds = dict.fromkeys((wanted, wanted.upper(), wanted.lower()))
    return [f"*[-._/]{kind}{end}" for kind in kinds for end in (SUFFIX, f"-*-of-*{SUFFIX}")]


def _models_in(path: Path, patterns: list[str]) -> list[Path]:
    """The first file of each model whose name fits; those for images are none."""
    files = (file for file in path.rglob(f"*{SUFFIX}") if _matches(str(file.relative_to(path)), patterns))
    return [file for file in models_in(files) if not is_projector(file)]


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _files(repo: str, revision: str) -> list[str]:
    """The repository's GGUF files, where the hub can be asked; first parts stand for all. For messages."""
    from huggingface_hub import HfApi, errors

    try:
        names = HfApi().list_repo_files(repo, revision=revision or None)
    except (errors.HTTPError, errors.OfflineModeIsEnabled, OSError):  # type: ignore[attr-defined]
        return []
    models = models_in(Path(name) for name in names if name.lower().endswith(SUFFIX))
    return [str(file) for file in models if not is_projector(file)]


@contextlib.contextmanager
def _explained(repo: str, revision: str) -> Iterator[None]:
    """Turn the hub client's errors into a line each.

    Raises:
        ConfigError
    """
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError:
        raise ConfigError(f"option.model_id={repo}: neither a local directory nor a hub id (owner/name)") from None
    except errors.GatedRepoError as exc:
        raise ConfigError(f"hub model {repo} is gated: accept its terms on its page, and set HF_TOKEN") from exc
    except errors.RepositoryNotFoundError as exc:
        raise SourceError(f"hub model {repo} does not exist, or is private and HF_TOKEN gives no access") from exc
    except errors.RevisionNotFoundError as exc:
        raise SourceError(f"hub model {repo} has no revision {revision!r}") from exc
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as exc:
        at = f" at revision {revision}" if revision else ""
        raise ConfigError(f"hub model {repo}{at} is not in the local cache, and the hub can't be reached") from exc
    except (errors.HTTPError, OSError) as exc:  # type: ignore[attr-defined]  # of the hub client's HTTP library
        raise ConfigError(f"hub model {repo} can't be downloaded: {one_line(exc)}") from exc
