"""Models that are on this machine: a directory, an archive, or a template of this package.

Runs in the front end and in workers.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..config.sources.places import ARCHIVE_SUFFIXES
from ..config.sources.urls import scheme_of, shown_url
from ..core.errors import ConfigError, SourceError
from ..core.model_files.download_part import DownloadProgress
from .cache import cached, unpack_into
from .gguf_files import described, is_gguf_name


class LocalSource:
    """A local directory, used in place, a local GGUF file, described in the cache, or an archive, unpacked there."""

    def __init__(self, cache_dir: Path | None = None, progress: DownloadProgress | None = None) -> None:
        self._cache_dir = cache_dir
        self._progress = progress

    def fetch(self, uri: str, revision: str = "") -> Path:
        text = unquote(urlsplit(uri).path) if scheme_of(uri) else uri
        path = Path(os.path.expanduser(text)).absolute()
        if not path.exists() and "?" in text:  # DJL's ?application=...&translatorFactory=...
            path = Path(os.path.expanduser(text.partition("?")[0])).absolute()
        if path.is_dir():
            return path
        if not path.exists():
            hint = f" (a hub model is hf://{uri})" if uri.count("/") == 1 and uri[0] not in "/.~" else ""
            raise SourceError(f"{path}: no such file or directory{hint}")
        if is_gguf_name(path):
            return described(path, self._cache_dir)
        if not path.name.lower().endswith(ARCHIVE_SUFFIXES):
            raise ConfigError(
                f"{path}: expected a directory, a GGUF file (*.gguf), or an archive ({', '.join(ARCHIVE_SUFFIXES)})"
            )
        stat = path.stat()
        key = f"{path} {stat.st_mtime_ns} {stat.st_size}"
        return cached(self._cache_dir, path.name, key, lambda staging: unpack_into(path, staging))


class TemplateSource(LocalSource):
    """A model directory that comes with this package, as `template://demo`, used in place."""

    def fetch(self, uri: str, revision: str = "") -> Path:
        (root,) = importlib.import_module("djl_python.serving_templates").__path__
        there = sorted(path.parent.name for path in Path(root).glob("*/README.md"))
        if (name := uri.partition("://")[2].strip("/")) not in there:
            raise SourceError(f"{shown_url(uri)}: there is no such template; there is {', '.join(there)}")
        return Path(root) / name
