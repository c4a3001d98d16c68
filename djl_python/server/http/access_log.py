"""The line for each request in the log.

Runs in the front end's event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from ...core.access.scopes import Scope
from ...core.call_trace import trace_id
from ..access.pages import SAFE_METHODS
from ..keys.callers import Caller
from ..routes import Match
from .requests.request_head import RequestHead

log = logging.getLogger("djl_python.access")

#: By names, which JSON lines have too.
_LINE: Final = '%(client)s "%(method)s %(path)s" %(status)d %(duration_ms).0f ms'
_LINE_WITH_KEY: Final = f"%(client)s %(key)s{_LINE.removeprefix('%(client)s')}"


def named(request_id: str, head: RequestHead) -> dict[str, str]:
    """The `extra` of a request's records: its id, and that of the trace that it says it belongs to."""
    trace = trace_id(head.headers.get("traceparent", ""))
    return {"request_id": request_id, "trace_id": trace} if trace else {"request_id": request_id}


def log_request(
    match: Match | None,
    caller: Caller,
    head: RequestHead,
    status: int,
    duration_s: float,
    extra: Mapping[str, object],
) -> None:
    """Log a request that has ended, if what it asked for (None: no route) is worth the level that is logged."""
    level = _level_of(match, head.method)
    if not log.isEnabledFor(level):
        return
    values = {
        "client": caller.address,
        "method": head.method,
        "path": head.path.encode("ascii", "backslashreplace").decode(),  # terminals obey some bytes beyond ASCII
        "status": status,
        "duration_ms": round(duration_s * 1000, 3),
    }
    line = _LINE
    if caller.key.name:
        values["key"], line = caller.key.name, _LINE_WITH_KEY
    # `log.log` would also look up the line of its caller, a quarter of its time; nothing prints it.
    log.handle(log.makeRecord(log.name, level, "", 0, line, (values,), None, extra=extra))


def _level_of(match: Match | None, method: str) -> int:
    """The log level of a request. Probes and browsers ask for pages all the time; changes are rarer and more
    important.
    """
    if match is None or not match.is_page or (match.route.scope is Scope.MANAGE and method not in SAFE_METHODS):
        return logging.INFO
    return logging.DEBUG
