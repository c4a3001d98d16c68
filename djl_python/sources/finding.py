"""Which source a model's URL has, and where its checkpoint is.

Runs in the front end for model URLs (`fetch_model`) and in the worker for `option.model_id` (`local_path`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Protocol

from ..config.environment import cache_directory
from ..config.sources.hub_ids import id_of_page, is_hub_id
from ..config.sources.named import named_url
from ..config.sources.urls import LOGIN, scheme_of, shown_url
from ..core.errors import ConfigError
from ..core.model_files.download_part import DownloadProgress
from ..core.registry import load_object, path_of
from .gguf_files import described, gguf_in, is_gguf_name


class ModelSource(Protocol):
    """One kind of source. Its class is in SOURCES under the URL schemes it serves; it takes the cache directory, and
    what is told how far downloads are (None: nobody)."""

    def fetch(self, uri: str, revision: str) -> Path:
        """The local directory of the model that `uri` names, downloaded if need be. `revision` is "" for the default.

        Raises:
            ConfigError: the model is not available; one line says why.
        """
        ...


SOURCES: Final = {
    "file": "djl_python.sources.local:LocalSource",
    "hf": "djl_python.sources.hub:HubSource",
    "ollama": "djl_python.sources.ollama:OllamaSource",
    "http": "djl_python.sources.http_archives:HttpSource",
    "https": "djl_python.sources.http_archives:HttpSource",
    "package": "djl_python.sources.packages:PackageSource",
    "s3": "djl_python.sources.s3:S3Source",
    "template": "djl_python.sources.local:TemplateSource",
}


#: Schemes of models that are on this machine.
_HERE: Final = ("", "file", "ollama", "template")


def stays_here(url: str) -> bool:
    """Whether nothing is downloaded for a model's URL."""
    return scheme_of(url) in _HERE


def local_path(model_id: str, revision: str, model_dir: Path, cache_dir: Path | None = None) -> Path:
    """The local directory of a checkpoint.

    `model_id` is a path (absolute, or relative to `model_dir`), a URL, or a hub id; "" is `model_dir` itself.

    Raises:
        ConfigError: the checkpoint does not exist, or can't be downloaded.
    """
    path = path_here(model_id, model_dir, cache_dir=cache_dir)
    if path is not None:
        return path
    if scheme_of(model_id):
        return fetch_model(model_id, cache_dir, revision)
    return fetch_model(f"hf://{model_id}", cache_dir, revision)


def path_here(model_id: str, model_dir: Path, cited: str = "", cache_dir: Path | None = None) -> Path | None:
    """`local_path` of a checkpoint that is already local; None where it must be fetched from a URL or the hub.

    A GGUF file is described in the cache; the description is the checkpoint.

    Args:
        cited: the setting that names the checkpoint, as errors cite it.
        cache_dir: None for the environment's.

    Raises:
        ConfigError: the checkpoint should be local and is not, or no source serves the URL's scheme.
    """
    if not model_id:
        if (checkpoint := _checkpoint_in(model_dir, cache_dir)) is None:
            raise ConfigError(f"option.model_id is not set, and {model_dir} has no config.json and no GGUF file")
        return checkpoint
    cited = cited or f"option.model_id={shown_url(model_id)}"
    path = model_dir / os.path.expanduser(model_id)  # unlike Path's, it leaves a user's name that nobody has
    try:
        if path.is_dir():
            return _checkpoint_in(path, cache_dir) or path
    except OSError as exc:  # another user's, or too long
        raise ConfigError(f"{cited}: {path}: {exc.strerror}") from exc
    if scheme_of(model_id):
        is_here = _source_of(model_id) in (SOURCES["template"], SOURCES["ollama"])
        return fetch_model(model_id, cache_dir or _cache()) if is_here else None
    if path.is_file():
        if is_gguf_name(path):
            return described(path, cache_dir or _cache())
        raise ConfigError(f"{cited}: {path} is a file; expected a directory, or a GGUF file (*.gguf)")
    if model_id.startswith(("/", ".", "~")) or model_id.partition(":")[0].count("/") > 1:
        raise ConfigError(f"{cited}: there is no directory {path}")
    if not is_hub_id(model_id.partition(":")[0]):
        raise ConfigError(f"{cited}: neither a local directory nor a hub id (owner/name)")
    return None


def _checkpoint_in(directory: Path, cache_dir: Path | None) -> Path | None:
    """The directory, if it has a config.json, or else the description of its GGUF file; None: it has neither.

    Raises:
        ConfigError: it has several GGUF files, or a damaged one.
    """
    if (directory / "config.json").is_file():
        return directory
    file = gguf_in(directory) if directory.is_dir() else None
    return None if file is None else described(file, cache_dir or _cache())


def _cache() -> Path | None:
    """The environment's directory of the cache."""
    named = cache_directory()
    return Path(named) if named else None


def downloaded_path(model_id: str, revision: str, model_dir: Path) -> Path | None:
    """`local_path` of a checkpoint whose files are on this machine; None where they would be downloaded.

    Raises:
        ConfigError: see `path_here`.
    """
    path = path_here(model_id, model_dir)
    if path is None and scheme_of(model_id) in ("", "hf"):
        from .hub import HubSource

        return HubSource(_cache()).downloaded(model_id, revision)
    return path


def fetch_model(
    url: str, cache_dir: Path | None = None, revision: str = "", progress: DownloadProgress | None = None
) -> Path:
    """The local directory of a model; `url` is a path or URL of a directory or an archive.

    Raises:
        ConfigError: nothing is there, no source serves the scheme, or the archive can't be unpacked.
    """
    source: ModelSource = load_object(_source_of(url))(cache_dir, progress)
    return source.fetch(url, revision)


def pull(
    model: str, cache_dir: Path | None = None, revision: str = "", progress: DownloadProgress | None = None
) -> Path:
    """Download a model where it is not here yet; returns its local directory.

    Args:
        model: owner/model of the hub, a name of `NAMED_MODELS`, or a URL.
        progress: is told how far it is.

    Raises:
        ConfigError: the name has another form, or the model does not exist or can't be downloaded.
    """
    if not scheme_of(model):
        if not is_hub_id(model.partition(":")[0]):
            raise ConfigError(f"{model}: expected owner/model of the hub, or a URL (hf://, s3://, http(s)://)")
        model = named_url(model) or f"hf://{model}"
    return fetch_model(model, cache_dir, revision, progress)


def _source_of(url: str) -> str:
    if scheme_of(url) and LOGIN.search(url):
        raise ConfigError(f"{shown_url(url)}: expected no user and password in the URL: nobody would send them")
    if scheme_of(url) == "djl":
        hub_id = shown_url(url).partition("://")[2].partition("/")[2]
        raise ConfigError(
            f"model {shown_url(url)}: DJL's model zoo is not here; expected a checkpoint, as in hf://{hub_id}"
        )
    if page := id_of_page(url):
        raise ConfigError(f"model {shown_url(url)}: a page of the hub; expected hf://{page}")
    return path_of(SOURCES, scheme_of(url) or "file", f"model {shown_url(url)}: scheme")
