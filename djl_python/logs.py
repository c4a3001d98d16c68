"""One line per record on stderr: `2026-11-20T10:00:00Z INFO model message`.

Runs in every process; configured once, by the command line and by the first thing a child process does. The word
after the level is the model that a record is about, or `-`; in a child it is the child's name.
"""

from __future__ import annotations

import logging
import time
from typing import Final, TextIO

LEVELS: Final = ("debug", "info", "warning", "error")


class Formatter(logging.Formatter):
    """UTC to the second; tracebacks and further lines follow as they are.

    Args:
        model: the word for a record that names no model of its own.
    """

    def __init__(self, model: str = "-") -> None:
        super().__init__(
            "%(asctime)s %(levelname)s %(model)s %(message)s", "%Y-%m-%dT%H:%M:%SZ", defaults={"model": model}
        )
        self.converter = time.gmtime


def configure(level: str, stream: TextIO | None = None, model: str = "-") -> None:
    """Send everything from `level` (one of `LEVELS`) up to `stream`, by default stderr."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Formatter(model))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("asyncio", "tornado"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))


def level() -> str:
    """The one of `LEVELS` that this process logs from."""
    name = logging.getLevelName(logging.getLogger().level).lower()
    return name if name in LEVELS else "info"
