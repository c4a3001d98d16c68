"""One line per record on stderr: `2026-11-20T10:00:00Z INFO model message`.

Runs in every process; the command line configures it, and each child process does so first. The word after the level
is the model that a record is about, or else `-` in the front end. In a worker it is the model and the worker's number,
such as `llama/0`, and in the engine of that worker `llama/0/engine`.
"""

from __future__ import annotations

import logging
import time
from typing import Final, TextIO

LEVELS: Final = ("debug", "info", "warning", "error")


class Formatter(logging.Formatter):
    """Formats records with the time in UTC, to the second; tracebacks and further lines follow unchanged.

    Args:
        name: the word for a record that names no model.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            "%(asctime)s %(levelname)s %(model)s %(message)s", "%Y-%m-%dT%H:%M:%SZ", defaults={"model": name}
        )
        self.converter = time.gmtime
        self.name = name


def configure(level: str, stream: TextIO | None = None, name: str = "-") -> None:
    """Log records of at least `level` (one of `LEVELS`) to `stream`, by default stderr; for `name` see `Formatter`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Formatter(name))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("asyncio", "tornado"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))


def level() -> str:
    """The lowest level that this process logs, one of `LEVELS`."""
    name = logging.getLevelName(logging.getLogger().level).lower()
    return name if name in LEVELS else "info"


def name() -> str:
    """The name of this process in its log lines, or `-`."""
    formatters = (handler.formatter for handler in logging.getLogger().handlers)
    return next((formatter.name for formatter in formatters if isinstance(formatter, Formatter)), "-")
