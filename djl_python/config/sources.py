"""Where models come from: local directories, archives, http(s), S3 and the Hugging Face Hub.

Runs in the front end for model URLs (`fetch_model`) and in the worker for `option.model_id` (`local_path`). What is
downloaded or unpacked appears in the cache directory whole or not at all, even when two processes do it at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import importlib
import os
import re
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from ..core.errors import ConfigError
from ..core.registry import load_object, path_of

try:
    from lzma import LZMAError
except ImportError:  # a Python that was built without it, and unpacks no .xz
    LZMAError = EOFError  # type: ignore[assignment,misc]

ARCHIVE_SUFFIXES: Final = (".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar", ".mar")
DOWNLOAD_TIMEOUT_S: Final = 60
INSTALL_S3: Final = "pip install 'djl-serving[s3]'"

#: User and password of a URL. The password may contain a / that should have been escaped.
LOGIN: Final = re.compile(r"(?<=://)(?:[^\s,/?#]*|[^\s,/?#@:]+:(?!\d+[/?#])[^\s,?#]*)@")

#: Files of a hub repository that a checkpoint needs. Second copies of the weights are not downloaded.
_HUB_FILES: Final = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.py"]
_HUB_DUPLICATES: Final = ["original/*", "consolidated*.safetensors", "onnx/*"]

#: What the readers of archives raise where one is damaged or cut off.
_DAMAGED: Final = (tarfile.TarError, zipfile.BadZipFile, zlib.error, LZMAError, EOFError)


class ModelSource(Protocol):
    """One kind of source. Its class takes the cache directory, and is in SOURCES under the URL schemes it serves."""

    def fetch(self, uri: str, revision: str) -> Path:
        """The local directory of the model that `uri` names, downloaded if need be. `revision` is "" for the default.

        Raises:
            ConfigError: the model is not available; one line says why.
        """
        ...


SOURCES: Final = {
    "file": "djl_python.config.sources:LocalSource",
    "hf": "djl_python.config.sources:HubSource",
    "http": "djl_python.config.sources:HttpSource",
    "https": "djl_python.config.sources:HttpSource",
    "s3": "djl_python.config.sources:S3Source",
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
    return HubSource(cache_dir).fetch(model_id, revision)


def path_here(model_id: str, model_dir: Path) -> Path | None:
    """`local_path` of a checkpoint that is already local; None where it must be fetched from a URL or the hub.

    Raises:
        ConfigError: the checkpoint should be local and is not, or no source serves the URL's scheme.
    """
    if not model_id:
        if not (model_dir / "config.json").is_file():
            raise ConfigError(f"option.model_id is not set, and {model_dir} has no config.json")
        return model_dir
    path = model_dir / os.path.expanduser(model_id)  # unlike Path's, it leaves a user's name that nobody has
    try:
        if path.is_dir():
            return path
    except OSError as exc:  # another user's, or too long
        raise ConfigError(f"option.model_id={model_id}: {path}: {exc.strerror}") from exc
    if scheme_of(model_id):
        _source_of(model_id)
        return None
    if path.is_file():
        raise ConfigError(f"option.model_id={model_id}: {path} is a file; expected a directory")
    if model_id.startswith(("/", ".", "~")) or model_id.count("/") > 1:
        raise ConfigError(f"option.model_id={model_id}: there is no directory {path}")
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
    return path_of(SOURCES, scheme_of(url) or "file", f"model {shown_url(url)}: scheme")


def shown_url(url: str) -> str:
    """A model's URL for display: without user, password, query (perhaps a signature) and fragment. A path stays."""
    return re.split("[?#]", LOGIN.sub("", url))[0] if scheme_of(url) else url


def scheme_of(url: str) -> str:
    """The scheme of a URL, lower-cased; "" for a path. DJL's `file:/path` counts as a URL."""
    scheme, colon, rest = url.partition("://")
    if colon and scheme.replace("+", "").replace("-", "").isalnum():
        return scheme.lower()
    return "file" if url.startswith("file:") and rest == "" else ""


class LocalSource:
    """A local directory, used in place, or a local archive, unpacked into the cache."""

    def __init__(self, cache_dir: Path | None = None) -> None:
        self._cache_dir = cache_dir

    def fetch(self, uri: str, revision: str = "") -> Path:
        text = unquote(urlsplit(uri).path) if scheme_of(uri) else uri
        path = Path(os.path.expanduser(text)).absolute()
        if not path.exists() and "?" in text:  # DJL's ?application=...&translatorFactory=...
            path = Path(os.path.expanduser(text.partition("?")[0])).absolute()
        if path.is_dir():
            return path
        if not path.exists():
            hint = f" (a hub model is hf://{uri})" if uri.count("/") == 1 and uri[0] not in "/.~" else ""
            raise ConfigError(f"{path}: no such file or directory{hint}")
        if not path.name.lower().endswith(ARCHIVE_SUFFIXES):
            raise ConfigError(f"{path}: expected a directory, or an archive ({', '.join(ARCHIVE_SUFFIXES)})")
        stat = path.stat()
        key = f"{path} {stat.st_mtime_ns} {stat.st_size}"
        return _cached(self._cache_dir, path.name, key, lambda staging: _unpack(path, staging))


class HttpSource:
    """An archive behind http or https. It is downloaded at every start, and unpacked when it has changed."""

    def __init__(self, cache_dir: Path | None = None) -> None:
        self._cache_dir = cache_dir

    def fetch(self, uri: str, revision: str = "") -> Path:
        shown = shown_url(uri)
        with _staging(_root(self._cache_dir)) as directory:
            archive, digest = directory / "archive", hashlib.sha256()
            try:
                with urllib.request.urlopen(uri, timeout=DOWNLOAD_TIMEOUT_S) as response, archive.open("wb") as file:
                    while data := response.read(1 << 20):
                        digest.update(data)
                        file.write(data)
                    if response.length:  # a plain tar archive that ends too early looks whole
                        raise ConfigError(f"{shown}: the connection ended {response.length} bytes too early")
            except urllib.error.HTTPError as exc:
                exc.close()
                raise ConfigError(f"{shown}: the server answered {exc.code} {exc.reason}") from None
            except (OSError, ValueError) as exc:
                raise ConfigError(f"{shown}: can't be downloaded: {_one_line(exc)}") from exc
            except http.client.HTTPException as exc:  # its message may quote the URL
                raise ConfigError(f"{shown}: can't be downloaded ({type(exc).__name__})") from exc
            name = PurePosixPath(urlsplit(uri).path).name or "download"
            return _cached(self._cache_dir, name, digest.hexdigest(), lambda to: _unpack(archive, to, shown))


class S3Source:
    """Everything under s3://bucket/prefix. Downloaded again when an object has changed."""

    def __init__(self, cache_dir: Path | None = None) -> None:
        self._cache_dir = cache_dir

    def fetch(self, uri: str, revision: str = "") -> Path:
        boto3, exceptions = _import("boto3", uri), _import("botocore.exceptions", uri)
        download_errors = _import("boto3.exceptions", uri)
        bucket, prefix = urlsplit(uri).netloc, urlsplit(uri).path.strip("/")
        try:
            client = boto3.client("s3")
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
            objects = self._objects(prefix, [item for page in pages for item in page.get("Contents", ())])
            if not objects:
                raise ConfigError(f"{shown_url(uri)}: there is nothing")

            def fill(staging: Path) -> None:
                for key, relative, _ in objects:
                    target = _inside(staging, relative, uri)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    client.download_file(bucket, key, str(target))

            version = "\n".join(f"{key} {tag}" for key, _, tag in objects)
            directory = _cached(self._cache_dir, PurePosixPath(prefix).name or bucket, f"{uri}\n{version}", fill)
        except (exceptions.BotoCoreError, exceptions.ClientError, download_errors.Boto3Error, OSError) as exc:
            raise ConfigError(f"{shown_url(uri)}: {_one_line(exc)}") from exc
        archive = directory / PurePosixPath(prefix).name
        if archive.name.lower().endswith(ARCHIVE_SUFFIXES) and archive.is_file():
            return LocalSource(self._cache_dir).fetch(str(archive))
        return directory

    @staticmethod
    def _objects(prefix: str, listed: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
        """(key, path below the prefix, ETag) of each object at or below the prefix, without folder markers."""
        found = []
        for item in listed:
            key = item["Key"]
            if key == prefix:
                relative = PurePosixPath(key).name
            elif not prefix or key.startswith(f"{prefix}/"):
                relative = key[len(prefix) :].lstrip("/")
            else:
                continue  # "models/a" also lists "models/ab"
            if relative and not key.endswith("/"):
                found.append((key, relative, item.get("ETag", "")))
        return found


class HubSource:
    """A repository of the Hugging Face Hub, in the hub client's own cache."""

    def __init__(self, cache_dir: Path | None = None) -> None:
        self._cache_dir = cache_dir

    def fetch(self, uri: str, revision: str = "") -> Path:
        from huggingface_hub import errors, snapshot_download

        repo = uri.removeprefix("hf://").strip("/")

        def download(patterns: list[str]) -> Path:
            return Path(
                snapshot_download(
                    repo, revision=revision or None, allow_patterns=patterns, ignore_patterns=_HUB_DUPLICATES
                )
            )

        try:
            path = download(_HUB_FILES)
            if not any(path.glob("*.safetensors")):
                path = download([*_HUB_FILES, "*.bin"])
        except errors.HFValidationError:
            raise ConfigError(f"option.model_id={repo}: neither a local directory nor a hub id (owner/name)") from None
        except errors.GatedRepoError as exc:
            raise ConfigError(f"hub model {repo} is gated: accept its terms on its page, and set HF_TOKEN") from exc
        except errors.RepositoryNotFoundError as exc:
            raise ConfigError(f"hub model {repo} does not exist, or is private and HF_TOKEN gives no access") from exc
        except errors.RevisionNotFoundError as exc:
            raise ConfigError(f"hub model {repo} has no revision {revision!r}") from exc
        except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as exc:
            at = f" at revision {revision}" if revision else ""
            raise ConfigError(f"hub model {repo}{at} is not in the local cache, and the hub can't be reached") from exc
        except (errors.HTTPError, OSError) as exc:  # type: ignore[attr-defined]  # of the hub client's HTTP library
            raise ConfigError(f"hub model {repo} can't be downloaded: {_one_line(exc)}") from exc
        return path


def _cached(cache_dir: Path | None, name: str, key: str, fill: Callable[[Path], None]) -> Path:
    """The directory for (name, key) in the cache; where it is missing, `fill` writes its content."""
    destination = _root(cache_dir) / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}" / _stem(name)
    if destination.is_dir():
        return destination
    with _staging(destination.parent) as staging:
        fill(staging)
        try:
            staging.rename(destination)
        except OSError:
            if not destination.is_dir():  # else another process was first: its copy is as good
                raise
    return destination


def _root(cache_dir: Path | None) -> Path:
    try:
        return cache_dir or Path.home() / ".cache" / "djl-serving"
    except RuntimeError:  # a container's user may be a number only
        raise ConfigError("this user has no home directory; DJL_CACHE_DIR says where downloads go") from None


@contextlib.contextmanager
def _staging(parent: Path) -> Iterator[Path]:
    """A new directory in `parent`, removed at the end unless it has been renamed.

    The system's temporary directory may have no room for a model.

    Raises:
        ConfigError: the directory can't be created.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".partial-", dir=parent))
    except OSError as exc:
        raise ConfigError(f"{parent}: {exc.strerror}; DJL_CACHE_DIR says where downloads go") from exc
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _unpack(archive: Path, staging: Path, shown: str = "") -> None:
    """Unpack a zip or tar file. An entry that would land outside of `staging` is an error, not skipped.

    Raises:
        ConfigError: neither zip nor tar, damaged, or hostile.
    """
    shown = shown or str(archive)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                for member in zipped.namelist():
                    _inside(staging, member, shown)
                zipped.extractall(staging)
        elif tarfile.is_tarfile(archive):
            with tarfile.open(archive) as tar:
                tar.extractall(staging, filter="data")  # new in Python 3.11.4
                while tar.fileobj is not None and tar.fileobj.read(1 << 20):
                    pass  # to the end, where gzip has its checksum
        else:
            raise ConfigError(f"{shown}: neither a zip nor a tar archive")
    except (*_DAMAGED, RuntimeError, OSError) as exc:
        raise ConfigError(f"{shown}: can't be unpacked: {_one_line(exc)}") from exc


def _inside(root: Path, relative: str, shown: str) -> Path:
    """`root / relative`; ConfigError unless it lies below root."""
    path = PurePosixPath(relative.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts:
        raise ConfigError(f"{shown}: entry {relative!r} points outside of the model")
    return root / path


def _stem(name: str) -> str:
    suffix = next((suffix for suffix in ARCHIVE_SUFFIXES if name.lower().endswith(suffix)), "")
    return name.removesuffix(name[len(name) - len(suffix) :]) or "model"


def _import(module: str, uri: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        raise ConfigError(f"{shown_url(uri)}: needs {exc.name}; install it with: {INSTALL_S3}") from exc


def _one_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
