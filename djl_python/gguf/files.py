"""The files of GGUF models by their names, and the file that a described checkpoint names. Imports no numpy.

Runs wherever models are looked for: the front end, workers, engines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from .errors import GgufError

SUFFIX: Final = ".gguf"
#: The file of a described directory that names the GGUF file.
FILE: Final = "gguf.json"
#: The version of what `describing.describe` writes: another is another directory of the cache.
VERSION: Final = 2
#: The class in the tokenizer_config.json of a described directory.
TOKENIZER_CLASS: Final = "GgufTokenizer"
_PART: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_MOST_PARTS: Final = 1000


def parts_of(path: Path) -> list[Path]:
    """The files of the model that `path` is a part of, whether or not they exist: the file alone, or all parts.

    Raises:
        GgufError: the name says that it is part 7 of 3, or of none.
    """
    if (match := _PART.fullmatch(path.name)) is None:
        return [path]
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count <= _MOST_PARTS:
        raise GgufError(f"{path}: part {number} of {count}; expected 1 to {_MOST_PARTS} parts")
    return [path.with_name(f"{match['stem']}-{each:05}-of-{count:05}{SUFFIX}") for each in range(1, count + 1)]


def models_in(paths: Iterable[Path]) -> list[Path]:
    """The first file of each model among these files; parts of one model count once."""
    return sorted({parts_of(path)[0] for path in paths})


def described_by(directory: Path) -> Path | None:
    """The GGUF file that a described directory names; None: the directory is another checkpoint."""
    content = _content(directory)
    return Path(content["path"]) if content else None


def loaded_bytes(directory: Path) -> int:
    """Bytes of a described model's weights once they are loaded, in config.json's dtype; 0 of another checkpoint."""
    return int(_content(directory).get("loaded_bytes", 0))


def coded_bytes(directory: Path) -> int:
    """Bytes of a described model's weights where kernels multiply with their codes; 0 of another checkpoint."""
    return int(_content(directory).get("coded_bytes", 0))


def _content(directory: Path) -> dict[str, Any]:
    """What `FILE` has; {} where there is none."""
    try:
        content: dict[str, Any] = json.loads((directory / FILE).read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as exc:
        raise GgufError(f"{directory / FILE}: can't be read: {exc}") from exc
    if not isinstance(content, dict) or not isinstance(content.get("path"), str):
        raise GgufError(f"{directory / FILE}: expected an object with the path of a GGUF file")
    return content


def signature(path: Path) -> str:
    """What tells a model's files from others in the same place: names, sizes and times of all parts.

    Raises:
        GgufError: a part is missing.
    """
    stated = []
    for part in parts_of(path):
        try:
            stat = part.stat()
        except OSError as exc:
            raise GgufError(f"{path}: {part.name} can't be read: {exc.strerror}") from exc
        stated.append(f"{part.absolute()} {stat.st_size} {stat.st_mtime_ns}")
    return f"gguf {VERSION}\n" + "\n".join(stated)
