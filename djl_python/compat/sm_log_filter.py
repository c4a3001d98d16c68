"""A filter for `logging` that makes SageMaker's metrics of lines with its markers. Runs in the worker.

`SysHealth: model load latency: 8.5 secs` becomes `SysHealth.Count:1|#DJLServing:<version>,ModelLoadLatency:8.5 secs`.
"""

from __future__ import annotations

import copy
import logging
import re
import sys
from collections import Counter
from typing import Any, ClassVar, Final

_LINE: Final = re.compile(r"(?P<marker>\w+)\s*:\s*(?P<name>[^:]+?)\s*:\s*(?P<value>\S+)\s+(?P<unit>\S+)\s*")


class SMLogFilter(logging.Filter):
    """Lets records with a marker of SageMaker's through, as metrics, and no others.

    Attributes:
        counter: name of a metric -> how often it was reported.
    """

    sm_log_markers: ClassVar[tuple[str, ...]] = (
        *("ModelServerError", "UserScriptError"),
        *("SysHealth", "ModelServerTelemetry"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.counter: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> Any:
        """A record with the metric as its message, or False."""
        match = _LINE.fullmatch(record.msg) if isinstance(record.msg, str) else None
        if match is None or match["marker"] not in self.sm_log_markers:
            return False
        from .. import __version__

        name = "".join(word[:1].upper() + word[1:] for word in match["name"].split())
        made = copy.copy(record) if sys.version_info >= (3, 12) else record  # a filter's copy counts since 3.12
        made.msg = (
            f"{match['marker']}.Count:{self.count(name)}|#DJLServing:{__version__},"
            f"{name}:{match['value']} {match['unit']}"
        )
        return made

    def count(self, key: str) -> int:
        """How often `key` was reported, this time included."""
        self.counter[key] += 1
        return self.counter[key]
