"""Models in archives behind http and https.

Runs in the front end and in workers.
"""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit

from ..config.sources.places import cache_root
from ..config.sources.urls import shown_url
from ..core.errors import ConfigError, SourceError
from ..core.model_files.download_part import DownloadProgress
from ..fetching.models import open_url
from ..formats.archives import LIMITS, room_for_bytes
from .cache import cached, one_line, staging_in, unpack_into
from .progress import Counted

DOWNLOAD_TIMEOUT_S: Final = 60


class HttpSource:
    """An archive behind http or https, fetched again when it has changed, as its ETag says; without one, every time."""

    def __init__(self, cache_dir: Path | None = None, progress: DownloadProgress | None = None) -> None:
        self._cache_dir = cache_dir
        self._progress = progress

    def fetch(self, uri: str, revision: str = "") -> Path:
        shown = shown_url(uri)
        name = PurePosixPath(urlsplit(uri).path).name or "download"
        try:
            with open_url(uri, DOWNLOAD_TIMEOUT_S) as response:
                tag = response.headers.get("etag", "")
                if tag.startswith('"'):  # a weak one (W/) may stay the same when bytes change
                    key = f"{uri} {tag}"
                    return cached(self._cache_dir, name, key, lambda to: self._fill(to, response, shown))
                with staging_in(cache_root(self._cache_dir)) as directory:
                    digest = _download(response, directory / "archive", shown, self._progress)
                    return cached(
                        self._cache_dir, name, digest, lambda to: unpack_into(directory / "archive", to, shown)
                    )
        except urllib.error.HTTPError as exc:
            exc.close()
            refusal = SourceError if exc.code in (404, 410) else ConfigError
            raise refusal(f"{shown}: the server answered {exc.code} {exc.reason}") from None
        except (OSError, ValueError) as exc:
            raise ConfigError(f"{shown}: can't be downloaded: {one_line(exc)}") from exc
        except http.client.HTTPException as exc:  # its message may quote the URL
            raise ConfigError(f"{shown}: can't be downloaded ({type(exc).__name__})") from exc

    def _fill(self, directory: Path, response: http.client.HTTPResponse, shown: str) -> None:
        with staging_in(cache_root(self._cache_dir)) as staging:
            _download(response, staging / "archive", shown, self._progress)
            unpack_into(staging / "archive", directory, shown)


def _download(
    response: http.client.HTTPResponse, to: Path, shown: str, progress: DownloadProgress | None = None
) -> str:
    """Write a response's body to a file, as long as the disk has room. Returns its SHA-256, in hexadecimal.

    Raises:
        ConfigError: it has no room, or the connection ended early.
    """
    digest, size = hashlib.sha256(), 0
    counted = Counted(progress, shown, response.length or 0)
    most = min(LIMITS.unpacked_bytes, room_for_bytes(to.parent))
    with to.open("wb") as file:
        if (response.length or 0) > most:
            raise ConfigError(f"{shown}: {response.length} bytes; there is room for {most}")
        while data := response.read(1 << 20):
            size += len(data)
            if size > most:
                raise ConfigError(f"{shown}: it does not end, and there is room for {most} bytes")
            digest.update(data)
            file.write(data)
            counted.add(len(data))
    if response.length:  # a plain tar archive that ends too early looks whole
        raise ConfigError(f"{shown}: the connection ended {response.length} bytes too early")
    return digest.hexdigest()
