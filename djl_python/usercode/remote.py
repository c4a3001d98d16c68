"""The user's file behind http or https, which `option.entryPoint` may name as in DJL: downloaded as model.py.

Runs in the worker, in the handler's thread. What is downloaded lies in the cache directory, a folder for each URL,
where tracebacks find its lines.
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import os
import tempfile
import urllib.error
from pathlib import Path
from typing import Final

from ..config import ModelConfig
from ..config.sources import cache_root, shown_url
from ..core.errors import ModelLoadError
from ..fetching.models import open_url
from ..sources.http_archives import DOWNLOAD_TIMEOUT_S

#: More than any handler's source has.
MAX_BYTES: Final = 16 << 20
_ENTRY_POINT: Final = "option.entryPoint"


def is_url(entry_point: str) -> bool:
    """Whether an entry point names a file behind http or https."""
    return entry_point.lower().startswith(("http://", "https://"))


def fetched_file(config: ModelConfig) -> Path:
    """The file that option.entryPoint, a URL, names; downloaded once by each worker, so that it is up to date.

    Raises:
        ModelLoadError: it can't be downloaded, or is too long for a source.
        ConfigError: there is no place for it.
    """
    url = config.option.entry_point
    cited = config.cite(_ENTRY_POINT, shown_url(url))
    return fetched_once(url, cited, cache_root(Path(config.cache_dir) if config.cache_dir else None))


@functools.cache
def fetched_once(url: str, cited: str, cache: Path) -> Path:
    """What `fetched_file` remembers.

    Args:
        cited: the setting that has the URL, for errors.
    """
    try:
        with open_url(url, DOWNLOAD_TIMEOUT_S) as response:
            source = response.read(MAX_BYTES + 1)
    except urllib.error.HTTPError as exc:
        exc.close()
        raise ModelLoadError(f"{cited}: the server answered {exc.code} {exc.reason}") from None
    except (OSError, ValueError, http.client.HTTPException) as exc:
        cause = getattr(exc, "reason", None) or type(exc).__name__  # a message may quote the URL
        raise ModelLoadError(f"{cited}: can't be downloaded: {cause}") from exc
    if len(source) > MAX_BYTES:
        raise ModelLoadError(f"{cited}: longer than {MAX_BYTES} bytes; expected a Python file")
    folder = cache / "entry-points" / hashlib.sha256(url.encode()).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=folder)
        with open(descriptor, "wb") as file:
            file.write(source)
        os.replace(name, folder / "model.py")  # another worker may be reading it
    except OSError as exc:
        raise ModelLoadError(f"{folder}: {exc.strerror}; DJL_CACHE_DIR says where downloads go") from exc
    return folder / "model.py"
