"""One line per record on stderr: `2026-11-20T10:00:00Z INFO model message`.

Runs in every process; the command line configures it, and each child process does so first. The word after the level
is the model that a record is about, or else `-` in the front end and the child's name in a child process.
"""

from __future__ import annotations

import logging
import time
from typing import Final, TextIO

LEVELS: Final = ("debug", "info", "warning", "error")


class Formatter(logging.Formatter):
    """Formats records with the time in UTC, to the second; tracebacks and further lines follow unchanged.

    Args:
        model: the word for a record that names no model.
    """

    def __init__(self, model: str = "-") -> None:
        super().__init__(
            "%(asctime)s %(levelname)s %(model)s %(message)s", "%Y-%m-%dT%H:%M:%SZ", defaults={"model": model}
        )
        self.converter = time.gmtime


def configure(level: str, stream: TextIO | None = None, model: str = "-") -> None:
    """Log records of at least `level` (one of `LEVELS`) to `stream`, by default stderr; for `model` see `Formatter`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Formatter(model))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("asyncio", "tornado"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))


def level() -> str:
    """The lowest level that this process logs, one of `LEVELS`."""
    name = logging.getLevelName(logging.getLogger().level).lower()
    return name if name in LEVELS else "info"
