"""The line for each request in the log.

Runs in the front end's event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from ...core.call_trace import trace_id
from ..routes import Match
from .access import SAFE_METHODS
from .request_head import RequestHead

log = logging.getLogger("djl_python.access")

#: By names, which JSON lines have too.
_LINE: Final = '%(client)s "%(method)s %(path)s" %(status)d %(duration_ms).0f ms'


def named(request_id: str, head: RequestHead) -> dict[str, str]:
    """The `extra` of a request's records: its id, and that of the trace that it says it belongs to."""
    trace = trace_id(head.headers.get("traceparent", ""))
    return {"request_id": request_id, "trace_id": trace} if trace else {"request_id": request_id}


def log_request(
    match: Match | None, client: str, head: RequestHead, status: int, duration_s: float, extra: Mapping[str, object]
) -> None:
    """Log a request that has ended, if what it asked for (None: no route) is worth the level that is logged."""
    level = _level_of(match, head.method)
    if not log.isEnabledFor(level):
        return
    values = {
        "client": client,
        "method": head.method,
        "path": head.path.encode("ascii", "backslashreplace").decode(),  # terminals obey some bytes beyond ASCII
        "status": status,
        "duration_ms": round(duration_s * 1000, 3),
    }
    # `log.log` would also look up the line of its caller, a quarter of its time; nothing prints it.
    log.handle(log.makeRecord(log.name, level, "", 0, _LINE, (values,), None, extra=extra))


def _level_of(match: Match | None, method: str) -> int:
    """How serious a request is: pages are asked for all the time, by probes and by whoever looks; not what changes."""
    if match is None or not match.is_page or (match.route.manages and method not in SAFE_METHODS):
        return logging.INFO
    return logging.DEBUG
