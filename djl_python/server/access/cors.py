"""The headers by which browsers let pages of other origins read answers (Fetch standard, "CORS protocol").

Runs in the front end's event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ...config import ServerConfig
from ...config.listening.names import listed
from .pages import ANY

#: How long a browser caches the answer to a preflight request.
_REMEMBERED_S: Final = 600


class Cors:
    """The requests that pages of other origins may send (cors_allowed_origin, _methods and _headers)."""

    def __init__(self, config: ServerConfig) -> None:
        self._origins = listed(config.cors_allowed_origin)
        allowed = {
            "Access-Control-Allow-Methods": config.cors_allowed_methods,
            "Access-Control-Allow-Headers": config.cors_allowed_headers,
        }
        self._allowed = {name: value for name, value in allowed.items() if value}
        self._to_any = {"Access-Control-Allow-Origin": ANY, **self._allowed}

    def headers(self, origin: str | None) -> Mapping[str, str]:
        """The headers of an answer to a page of this origin; None: the request has none."""
        if not self._origins:
            return {}
        if ANY in self._origins:
            return self._to_any
        varies = {"Vary": "Origin"}
        if origin is None or origin.lower() not in self._origins:
            return varies
        return {"Access-Control-Allow-Origin": origin, **self._allowed, **varies}

    def preflight(self, headers: Mapping[str, str], methods: Iterable[str]) -> Mapping[str, str]:
        """The further headers of the answer to OPTIONS, by which a browser asks before it sends a page's request.

        Args:
            headers: the request's, by their names in lower case.
            methods: that the path has.
        """
        asked = "origin" in headers and "access-control-request-method" in headers
        if not asked or "Access-Control-Allow-Origin" not in self.headers(headers["origin"]):
            return {}
        answer = {"Access-Control-Allow-Methods": ", ".join(methods), "Access-Control-Max-Age": str(_REMEMBERED_S)}
        if wanted := headers.get("access-control-request-headers"):
            answer["Access-Control-Allow-Headers"] = wanted
        return {name: value for name, value in answer.items() if name not in self._allowed}
