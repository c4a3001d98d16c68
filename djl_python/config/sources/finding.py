"""Which source a model's URL has, and where its checkpoint is.

Runs in the front end for model URLs (`fetch_model`) and in the worker for `option.model_id` (`local_path`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Protocol

from ...core.errors import ConfigError
from ...core.registry import load_object, path_of
from .hub_ids import id_of_page, is_hub_id
from .urls import LOGIN, scheme_of, shown_url


class ModelSource(Protocol):
    """One kind of source. Its class takes the cache directory, and is in SOURCES under the URL schemes it serves."""

    def fetch(self, uri: str, revision: str) -> Path:
        """The local directory of the model that `uri` names, downloaded if need be. `revision` is "" for the default.

        Raises:
            ConfigError: the model is not available; one line says why.
        """
        ...


SOURCES: Final = {
    "file": "djl_python.config.sources.local:LocalSource",
    "hf": "djl_python.config.sources.hub:HubSource",
    "http": "djl_python.config.sources.http_archives:HttpSource",
    "https": "djl_python.config.sources.http_archives:HttpSource",
    "s3": "djl_python.config.sources.s3:S3Source",
    "template": "djl_python.config.sources.local:TemplateSource",
}


def local_path(model_id: str, revision: str, model_dir: Path, cache_dir: Path | None = None) -> Path:
    """The local directory of a checkpoint.

    `model_id` is a path (absolute, or relative to `model_dir`), a URL, or a hub id; "" is `model_dir` itself.

    Raises:
        ConfigError: there is no such checkpoint, or it can't be downloaded.
    """
    path = path_here(model_id, model_dir)
    if path is not None:
        return path
    if scheme_of(model_id):
        return fetch_model(model_id, cache_dir, revision)
    return fetch_model(f"hf://{model_id}", cache_dir, revision)


def path_here(model_id: str, model_dir: Path, said: str = "") -> Path | None:
    """`local_path` of a checkpoint that is already local; None where it must be fetched from a URL or the hub.

    Args:
        said: the setting that names the checkpoint, as errors cite it.

    Raises:
        ConfigError: the checkpoint should be local and is not, or no source serves the URL's scheme.
    """
    if not model_id:
        if not (model_dir / "config.json").is_file():
            raise ConfigError(f"option.model_id is not set, and {model_dir} has no config.json")
        return model_dir
    said = said or f"option.model_id={shown_url(model_id)}"
    path = model_dir / os.path.expanduser(model_id)  # unlike Path's, it leaves a user's name that nobody has
    try:
        if path.is_dir():
            return path
    except OSError as exc:  # another user's, or too long
        raise ConfigError(f"{said}: {path}: {exc.strerror}") from exc
    if scheme_of(model_id):
        return fetch_model(model_id) if _source_of(model_id) == SOURCES["template"] else None
    if path.is_file():
        raise ConfigError(f"{said}: {path} is a file; expected a directory")
    if model_id.startswith(("/", ".", "~")) or model_id.count("/") > 1:
        raise ConfigError(f"{said}: there is no directory {path}")
    if not is_hub_id(model_id):
        raise ConfigError(f"{said}: neither a local directory nor a hub id (owner/name)")
    return None


def fetch_model(url: str, cache_dir: Path | None = None, revision: str = "") -> Path:
    """The local directory of a model; `url` is a path or URL of a directory or an archive.

    Raises:
        ConfigError: nothing is there, no source serves the scheme, or the archive can't be unpacked.
    """
    source: ModelSource = load_object(_source_of(url))(cache_dir)
    return source.fetch(url, revision)


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
