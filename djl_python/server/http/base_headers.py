"""The headers that every answer of a server carries.

Runs in the front end's event loop.
"""

from __future__ import annotations

import functools
import time

from tornado import httputil

from ...config import ServerConfig
from ..access.cors import Cors


class BaseHeaders:
    """The date, protection against content sniffing, and the CORS headers.

    Attributes:
        request_id: the name of the header that carries a request's id, there and back.
        cors: what other origins are allowed.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.request_id = config.request_id_header_key
        self.cors = Cors(config)

    def now(self, origin: str | None = None) -> httputil.HTTPHeaders:
        """A copy for one answer, which its own headers may replace. `origin`: the request's, if it has one."""
        return httputil.HTTPHeaders(
            {"Date": _date(int(time.time())), "X-Content-Type-Options": "nosniff", **self.cors.headers(origin)}
        )


@functools.lru_cache(maxsize=1)
def _date(second: int) -> str:
    """A Unix time as HTTP's Date header has it."""
    return httputil.format_timestamp(second)
