"""Models that Ollama has downloaded, read from its own directory.

Runs in the front end and in workers. A manifest lists a model's layers, which are files named by their digests; one of
them is a GGUF file. Ollama itself need not run.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any, Final

from ..config.environment import own_environment
from ..core.errors import ConfigError, SourceError
from ..core.model_files.download_part import DownloadProgress
from .gguf_files import described

log = logging.getLogger(__name__)

_REGISTRY: Final = ("registry.ollama.ai", "library")
_DEFAULT_TAG: Final = "latest"
_PART: Final = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
_DIGEST: Final = re.compile(r"sha256[:-]([0-9a-f]{64})")
_LAYER: Final = "application/vnd.ollama.image."
#: Where Ollama keeps models when it is a service of the system.
_OF_THE_SERVICE: Final = Path("/usr/share/ollama/.ollama/models")
_LONGEST_MANIFEST: Final = 1 << 20


class OllamaSource:
    """`ollama://name[:tag]`, or `ollama://owner/name[:tag]`, in OLLAMA_MODELS or in Ollama's own directories."""

    def __init__(self, cache_dir: Path | None = None, progress: DownloadProgress | None = None) -> None:
        self._cache_dir = cache_dir
        self._progress = progress

    def fetch(self, uri: str, revision: str = "") -> Path:
        name, _, tag = uri.partition("://")[2].strip("/").partition(":")
        parts = [*name.split("/"), tag or _DEFAULT_TAG]
        if not all(map(_PART.fullmatch, parts)) or len(parts) > 4:
            raise ConfigError(f"{uri}: expected ollama://NAME, ollama://NAME:TAG or ollama://OWNER/NAME:TAG")
        whole = [*_REGISTRY[: 4 - len(parts)], *parts]
        for root in _roots():
            manifest = root.joinpath("manifests", *whole)
            if manifest.is_file():
                return self._described(uri, root, manifest)
        there = sorted({model for root in _roots() for model in _names(root)})
        beside = f"there is {', '.join(there)}" if there else "and no others"
        places = " or ".join(map(str, _roots()))
        raise SourceError(f"{uri}: Ollama has no such model in {places}; {beside}. `ollama pull` downloads it")

    def _described(self, uri: str, root: Path, manifest: Path) -> Path:
        layers = _layers(manifest)
        if "adapter" in layers:
            raise ConfigError(f"{uri}: the model has a LoRA adapter as a GGUF file, which is not served here")
        if "projector" in layers:
            log.warning("%s: its projector is for images, which are not served from GGUF files; texts are", uri)
        digest = _DIGEST.fullmatch(str(layers.get("model")))
        if digest is None:
            raise ConfigError(f"{manifest}: expected a layer {_LAYER}model with a digest of sha256")
        blob = root / "blobs" / f"sha256-{digest[1]}"
        if not blob.is_file():
            raise ConfigError(f"{uri}: {blob} is missing; `ollama pull` downloads it again")
        return described(blob, self._cache_dir)


def _roots() -> list[Path]:
    environ = own_environment()
    if named := environ.get("OLLAMA_MODELS"):
        return [Path(named).expanduser()]
    return [Path("~/.ollama/models").expanduser(), _OF_THE_SERVICE]


def _names(root: Path) -> list[str]:
    """The models of Ollama's own library that are in a directory."""
    library = root.joinpath("manifests", *_REGISTRY)
    return [f"{tag.parent.name}:{tag.name}" for tag in library.glob("*/*") if tag.is_file()]


def _layers(manifest: Path) -> dict[str, Any]:
    """The digests of a manifest's layers, by what they are.

    Raises:
        ConfigError: it is no manifest.
    """
    try:
        with manifest.open("rb") as file:
            content = json.loads(file.read(_LONGEST_MANIFEST))
        layers = {layer["mediaType"].removeprefix(_LAYER): layer["digest"] for layer in content["layers"]}
    except OSError as exc:
        raise ConfigError(f"{manifest}: can't be read: {exc.strerror}") from exc
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise ConfigError(f"{manifest}: expected Ollama's manifest, with layers") from exc
    return layers
