"""One line per record on stderr: `2026-11-20T10:00:00Z INFO model message`.

Runs in the front end; configured once, by the command line. The second word after the level is the model a record is
about, or `-`.
"""

from __future__ import annotations

import logging
import time
from typing import Final, TextIO

LEVELS: Final = ("debug", "info", "warning", "error")


class Formatter(logging.Formatter):
    """UTC to the second; tracebacks and further lines follow as they are."""

    def __init__(self) -> None:
        super().__init__(
            "%(asctime)s %(levelname)s %(model)s %(message)s", "%Y-%m-%dT%H:%M:%SZ", defaults={"model": "-"}
        )
        self.converter = time.gmtime


def configure(level: str, stream: TextIO | None = None) -> None:
    """Send everything from `level` (one of `LEVELS`) up to `stream`, by default stderr."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Formatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("asyncio", "tornado"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))
