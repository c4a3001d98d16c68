"""Opens the tensors of a checkpoint in its memory-mapped files. Runs in the engine process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def mapped_tensors(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (name, the opened file that has it) for every tensor in the safetensors files of a directory."""
    from safetensors import safe_open

    for file in sorted(path.glob("*.safetensors")):
        opened: Any = safe_open(file, framework="pt")
        for name in opened.keys():  # noqa: SIM118 (it can't be iterated over)
            yield name, opened
