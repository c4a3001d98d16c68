"""The headers that every answer of a server carries.

Runs in the front end's event loop.
"""

from __future__ import annotations

import functools
import time

from tornado import httputil

from ...config import ServerConfig


class BaseHeaders:
    """The date, and what CORS asks for where an origin is configured.

    Attributes:
        request_id: the name of the header that carries a request's id, there and back.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.request_id = config.request_id_header_key
        cors = {
            "Access-Control-Allow-Origin": config.cors_allowed_origin,
            "Access-Control-Allow-Methods": config.cors_allowed_methods,
            "Access-Control-Allow-Headers": config.cors_allowed_headers,
        }
        self._cors = {name: value for name, value in cors.items() if value} if config.cors_allowed_origin else {}

    def now(self) -> httputil.HTTPHeaders:
        """A copy for one answer, which its own headers may replace."""
        return httputil.HTTPHeaders({"Date": _date(int(time.time())), **self._cors})


@functools.lru_cache(maxsize=1)
def _date(second: int) -> str:
    """A Unix time as HTTP's Date header has it."""
    return httputil.format_timestamp(second)
