"""Models in GGUF files on this machine: found in a directory, and described in the cache as checkpoints.

Runs in the front end and in workers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ..core.errors import ConfigError
from ..gguf import SUFFIX, models_in, signature
from .cache import cached

#: Images of a vision model, which llama.cpp keeps beside the model in a file of their own.
_PROJECTOR: Final = "mmproj"


def is_gguf_name(path: Path) -> bool:
    return path.suffix.lower() == SUFFIX


def is_projector(path: Path) -> bool:
    """Whether a file is for images, by its name."""
    return _PROJECTOR in path.name.lower()


def described(path: Path, cache_dir: Path | None = None) -> Path:
    """The directory in the cache that describes the model in a GGUF file, any part of several.

    Raises:
        ConfigError: the file is damaged, or has something that is not served here.
    """
    from ..gguf.describing import describe  # numpy, which a worker without a GGUF file need not import

    name = path.name[: -len(SUFFIX)] if is_gguf_name(path) else path.name
    return cached(cache_dir, name, signature(path), lambda staging: describe(path, staging))


def gguf_in(directory: Path) -> Path | None:
    """The first file of the one model that a directory has as GGUF; None: it has none.

    Raises:
        ConfigError: it has several; names them.
    """
    models = models_in(path for path in directory.iterdir() if path.is_file() and is_gguf_name(path))
    if not models:
        return None
    wanted = [path for path in models if not is_projector(path)]
    if len(wanted) != 1:
        names = ", ".join(path.name for path in models)
        raise ConfigError(
            f"{directory}: {len(models)} models in GGUF files: {names}; expected one, or option.model_id=FILE{SUFFIX}"
        )
    if len(models) > 1:
        projectors = ", ".join(path.name for path in models if path not in wanted)
        raise ConfigError(
            f"{directory}: {projectors} is for images, which are not served from GGUF files; "
            f"option.model_id={wanted[0].name} serves the language model without"
        )
    return wanted[0]
