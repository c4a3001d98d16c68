"""Models in buckets of S3, with boto3.

Runs in the front end and in workers.
"""

from __future__ import annotations

import importlib
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

from ..config.sources.places import ARCHIVE_SUFFIXES
from ..config.sources.urls import shown_url
from ..core.errors import ConfigError, PayloadError, SourceError
from ..core.model_files.download_part import DownloadProgress
from ..formats.archives import LIMITS, inside, room_for_bytes
from .cache import cached, one_line
from .local import LocalSource
from .progress import Counted

INSTALL_S3: Final = "pip install 'djl-serving[s3]'"


class S3Source:
    """Everything under s3://bucket/prefix, downloaded again when an object has changed."""

    def __init__(self, cache_dir: Path | None = None, progress: DownloadProgress | None = None) -> None:
        self._cache_dir = cache_dir
        self._progress = progress

    def fetch(self, uri: str, revision: str = "") -> Path:
        boto3, exceptions = _import("boto3", uri), _import("botocore.exceptions", uri)
        download_errors = _import("boto3.exceptions", uri)
        bucket, prefix = urlsplit(uri).netloc, urlsplit(uri).path.strip("/")
        try:
            client = boto3.client("s3")
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
            listed = [item for page in pages for item in page.get("Contents", ())]
            objects = self._objects(prefix, listed)
            if not objects:
                raise SourceError(f"{shown_url(uri)}: there is nothing")

            def fill(staging: Path) -> None:
                sizes = {item["Key"]: item.get("Size", 0) for item in listed}
                size, room = sum(sizes[key] for key, _, _ in objects), room_for_bytes(staging)
                if size > room or len(objects) > LIMITS.entries:
                    raise ConfigError(
                        f"{shown_url(uri)}: {len(objects)} objects of {size} bytes; there is room for {LIMITS.entries} "
                        f"of {room}"
                    )
                for key, relative, _ in objects:
                    target = _inside(staging, relative, uri)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    counted = Counted(self._progress, f"{uri} {key}", sizes[key])
                    client.download_file(bucket, key, str(target), Callback=counted.add)

            version = "\n".join(f"{key} {tag}" for key, _, tag in objects)
            directory = cached(self._cache_dir, PurePosixPath(prefix).name or bucket, f"{uri}\n{version}", fill)
        except (exceptions.BotoCoreError, exceptions.ClientError, download_errors.Boto3Error, OSError) as exc:
            raise ConfigError(f"{shown_url(uri)}: {one_line(exc)}") from exc
        archive = directory / PurePosixPath(prefix).name
        if archive.name.lower().endswith(ARCHIVE_SUFFIXES) and archive.is_file():
            return LocalSource(self._cache_dir).fetch(str(archive))
        return directory

    @staticmethod
    def _objects(prefix: str, listed: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
        """(key, path below the prefix, ETag) of each object at or below the prefix, without folder markers."""
        objects = []
        for item in listed:
            key = item["Key"]
            if key == prefix:
                relative = PurePosixPath(key).name
            elif not prefix or key.startswith(f"{prefix}/"):
                relative = key[len(prefix) :].lstrip("/")
            else:
                continue  # "models/a" also lists "models/ab"
            if relative and not key.endswith("/"):
                objects.append((key, relative, item.get("ETag", "")))
        return objects


def _inside(root: Path, relative: str, shown: str) -> Path:
    """`root / relative`; ConfigError unless it lies below root."""
    try:
        return inside(root, relative)
    except PayloadError as exc:
        raise ConfigError(f"{shown_url(shown)}: {exc.message}") from exc


def _import(module: str, uri: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        raise ConfigError(f"{shown_url(uri)}: needs {exc.name}; install it with: {INSTALL_S3}") from exc
