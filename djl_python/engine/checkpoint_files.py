"""The tensors of a checkpoint where they lie, in mapped files. Runs in the engine process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def mapped_tensors(path: Path) -> Iterator[tuple[str, Any]]:
    """(name, the opened file that has it) of every tensor in safetensors files."""
    from safetensors import safe_open

    for file in sorted(path.glob("*.safetensors")):
        opened: Any = safe_open(file, framework="pt")
        for name in opened.keys():  # noqa: SIM118 (it can't be iterated over)
            yield name, opened
