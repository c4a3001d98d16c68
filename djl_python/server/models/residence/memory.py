"""What a model needs of the machine's memory: estimated from its files, and measured while it is loaded.

Runs in threads of the front end. A model's memory is what is resident of its workers and of what they have started, and
on a GPU its weights and its cache there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import psutil

from ....config import ModelConfig, bounds_of
from ....core.engine_info import EngineInfo
from ....core.errors import ConfigError
from ....gguf import loaded_bytes
from ....sources import downloaded_path

#: What a worker and its engine need beside the weights: interpreters, torch, buffers. It is measured once it is there.
PROCESSES_BYTES: Final = 512 << 20
#: Suffixes of files with weights, in order of preference: a checkpoint may have the same weights in several forms.
_WEIGHTS: Final = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".onnx")


def least_workers(config: ModelConfig) -> int:
    """How many workers a model is loaded with."""
    return sum(least for least, _ in bounds_of(config).values()) or 1


def estimated_bytes(config: ModelConfig) -> int:
    """The memory that a model's workers will probably need: its files' sizes. Blocks.

    The files of a checkpoint that is not on this machine yet have no sizes: it counts as its processes.
    """
    directory = Path(config.path)
    try:
        path = downloaded_path(config.option.model_id, config.option.revision, directory)
    except ConfigError:  # a handler of the user's knows what it loads; what is wrong its worker will say
        path = directory if config.path else None
    return least_workers(config) * (PROCESSES_BYTES + (0 if path is None else _weights_bytes(path)))


def measured_bytes(workers: Collection[int]) -> Mapping[int, int]:
    """The resident memory of each of these processes, with what they have started; 0 where it has ended. Blocks."""
    below: dict[int, list[int]] = {}
    for process in psutil.process_iter(["ppid"]):
        below.setdefault(process.info["ppid"] or 0, []).append(process.pid)
    return {pid: sum(map(_resident_bytes, _tree(pid, below))) for pid in workers}


def device_bytes(engine: EngineInfo | None) -> int:
    """The memory of a GPU that an engine has taken; 0 where it has none."""
    if engine is None or not engine.device or engine.device.startswith("cpu"):
        return 0
    return engine.weight_bytes + engine.cache_bytes


def _tree(pid: int, below: Mapping[int, list[int]]) -> Iterator[int]:
    yield pid
    for child in below.get(pid, ()):
        yield from _tree(child, below)


def _resident_bytes(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:  # it has ended, or is another user's
        return 0


def _weights_bytes(directory: Path) -> int:
    if size := loaded_bytes(directory):  # a GGUF file elsewhere
        return size
    for suffix in _WEIGHTS:
        if size := sum(file.stat().st_size for file in directory.glob(f"*{suffix}") if file.is_file()):
            return size
    return 0
