"""A model's LoRA adapters: their names, directories and ranks.

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
    """(each adapter's name and absolute directory, faults); no adapters where the engine takes none.

    Where `option.enable_lora` is unset, folders that peft has not written are no adapters.

    Args:
        options: those settings of the model that only its engine takes.
        directory: the model's; None: there is only a checkpoint.
    """
    row = row_of(rolling_batch)
    enabled: bool | None = options.get("enable_lora")
    if row is None or not row.takes_adapters or enabled is False:
        return {}, []
    directories = [directory] if directory is not None else []
    if model_id and (checkpoint := Path(*directories, model_id)).is_dir():
        directories.append(checkpoint)
    named, problems = dict(_in_folders(options.get("adapters", "adapters"), directories)), []
    if enabled is None:
        named = {name: path for name, path in named.items() if (path / ADAPTER_FILE).is_file()}
    try:
        named |= {name: _resolved(path, directories) for name, path in _modules(options.get("lora_modules", ""))}
    except ConfigError as exc:
        problems.append(exc.message)
    for name, path in named.items():
        if not (path / ADAPTER_FILE).is_file():
            problems.append(f"adapter {name}: there is no {ADAPTER_FILE} in {path}: expected what peft saves")
    return {name: str(path.absolute()) for name, path in named.items()}, problems


def _in_folders(folder: str, directories: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """The adapters in a folder of each directory. Those of the first directory come last and win."""
    for directory in reversed(directories):
        if (below := directory / folder).is_dir():
            yield from (
                (folder.name, folder) for folder in sorted(below.iterdir()) if folder.is_dir() and folder.name[0] != "."
            )


def _resolved(path: str, directories: Sequence[Path]) -> Path:
    return next((candidate for directory in directories if (candidate := directory / path).is_dir()), Path(path))


def adapter_rank(directory: str) -> int:
    """The rank of an adapter's matrices; 0 if its configuration names none.

    Raises:
        ModelLoadError: the configuration can't be read.
    """
    rank = read_json_object(Path(directory, ADAPTER_FILE)).get("r")
    return rank if isinstance(rank, int) else 0


def rank_fault(name: str, rank: int, most: int) -> str:
    """What is said of an adapter whose rank is too high."""
    return f"adapter {name} has rank {rank}; expected at most option.max_lora_rank={most}"


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
        entries: Any = json.loads(text)
    except ValueError as exc:
        raise ConfigError(f"option.lora_modules: not valid JSON ({exc})") from exc
    for entry in entries if isinstance(entries, list) else [entries]:
        if not (
            isinstance(entry, Mapping) and isinstance(entry.get("name"), str) and isinstance(entry.get("path"), str)
        ):
            raise ConfigError('option.lora_modules: expected objects such as {"name": "a", "path": "adapters/a"}')
        yield entry["name"], entry["path"]
