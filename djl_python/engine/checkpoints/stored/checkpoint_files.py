"""Opens the tensors of a checkpoint's safetensors, which are mapped. Runs in the engine process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ....core.errors import ModelLoadError


def open_tensors(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (name, the opened file that has it) for every tensor in the safetensors files of a directory.

    Raises:
        ModelLoadError: a file is damaged or incomplete; the message names it.
    """
    from safetensors import SafetensorError, safe_open

    for file in sorted(path.glob("*.safetensors")):
        try:
            opened: Any = safe_open(file, framework="pt")
        except SafetensorError as exc:
            raise ModelLoadError(f"{file}: not a complete safetensors file: {exc}") from exc
        for name in opened.keys():  # noqa: SIM118 (it can't be iterated over)
            yield name, opened
