"""A model's LoRA adapters: which there are, and what is read of each.

Runs in every process. Source: DJL's "Adapters", where each has a folder in the directory `adapters`, beside
serving.properties or in the checkpoint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..core.errors import ConfigError
from .engines import row_of
from .model import read_json_object

#: What peft saves beside an adapter's weights.
ADAPTER_FILE: Final = "adapter_config.json"


def adapters_of(
    rolling_batch: str, options: Mapping[str, Any], model_id: str, directory: Path | None
) -> tuple[dict[str, str], list[str]]:
    """(each adapter's name and absolute directory, what is wrong with them); none of an engine that takes none.

    Args:
        options: what is set of the options that only the model's engine takes.
        directory: the model's; None: there is only a checkpoint.
    """
    row = row_of(rolling_batch)
    if row is None or not row.takes_adapters or not options.get("enable_lora"):
        return {}, []
    directories = [directory] if directory is not None else []
    if model_id and (checkpoint := Path(*directories, model_id)).is_dir():
        directories.append(checkpoint)
    named, problems = dict(_in_folders(options.get("adapters", "adapters"), directories)), []
    try:
        named |= {name: _found(path, directories) for name, path in _modules(options.get("lora_modules", ""))}
    except ConfigError as exc:
        problems.append(exc.message)
    for name, found in named.items():
        if not (found / ADAPTER_FILE).is_file():
            problems.append(f"adapter {name}: there is no {ADAPTER_FILE} in {found}: expected what peft saves")
    return {name: str(found.absolute()) for name, found in named.items()}, problems


def _in_folders(folder: str, directories: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """The adapters in a folder of each directory; those of the first one come last, and are stronger."""
    for directory in reversed(directories):
        if (below := directory / folder).is_dir():
            yield from ((one.name, one) for one in sorted(below.iterdir()) if one.is_dir() and one.name[0] != ".")


def _found(path: str, directories: Sequence[Path]) -> Path:
    return next((one for directory in directories if (one := directory / path).is_dir()), Path(path))


def adapter_rank(directory: str) -> int:
    """The rank of an adapter's matrices; 0 where its configuration does not tell.

    Raises:
        ModelLoadError: the configuration can't be read.
    """
    rank = read_json_object(Path(directory, ADAPTER_FILE)).get("r")
    return rank if isinstance(rank, int) else 0


def _modules(text: str) -> Iterator[tuple[str, str]]:
    """The (name, path) of `option.lora_modules`: vLLM's NAME=PATH, or its JSON objects with name and path."""
    if not text.strip().startswith(("{", "[")):
        for part in re.split(r"[,\s]+", text.strip()) if text.strip() else ():
            name, equals, path = part.partition("=")
            if not (name and equals and path):
                raise ConfigError(f"option.lora_modules: expected NAME=PATH, got {part}")
            yield name, path
        return
    try:
        found: Any = json.loads(text)
    except ValueError as exc:
        raise ConfigError(f"option.lora_modules: not valid JSON ({exc})") from exc
    for one in found if isinstance(found, list) else [found]:
        if not (isinstance(one, Mapping) and isinstance(one.get("name"), str) and isinstance(one.get("path"), str)):
            raise ConfigError('option.lora_modules: expected objects such as {"name": "a", "path": "adapters/a"}')
        yield one["name"], one["path"]
