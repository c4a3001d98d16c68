"""One line per record on stderr: `2026-11-20T10:00:00Z INFO model message`.

Runs in every process; configured once, by the command line and by the first thing a child process does. The word
after the level is the model that a record is about, or `-`; in a worker it is the model and the worker's number, as in
`llama/0`, and in that worker's engine `llama/0/engine`.
"""

from __future__ import annotations

import logging
import time
from typing import Final, TextIO

LEVELS: Final = ("debug", "info", "warning", "error")


class Formatter(logging.Formatter):
    """UTC to the second; tracebacks and further lines follow as they are.

    Args:
        name: the word for a record that names no model of its own.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            "%(asctime)s %(levelname)s %(model)s %(message)s", "%Y-%m-%dT%H:%M:%SZ", defaults={"model": name}
        )
        self.converter = time.gmtime
        self.name = name


def configure(level: str, stream: TextIO | None = None, name: str = "-") -> None:
    """Send everything from `level` (one of `LEVELS`) up to `stream`, by default stderr; `name` is this process's."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Formatter(name))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("asyncio", "tornado"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))


def level() -> str:
    """The one of `LEVELS` that this process logs from."""
    name = logging.getLevelName(logging.getLogger().level).lower()
    return name if name in LEVELS else "info"


def name() -> str:
    """The word for this process, or `-`."""
    formatters = (handler.formatter for handler in logging.getLogger().handlers)
    return next((formatter.name for formatter in formatters if isinstance(formatter, Formatter)), "-")
