"""The head of a request: method, path, query and headers.

Runs in the front end.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final
from urllib.parse import parse_qsl

from tornado import httputil

from ....core.errors import PayloadError

#: A Host header's characters (RFC 3986, 3.2.2): no comma, which would be two of them (RFC 9112, 3.2).
_HOST: Final = re.compile(r"[A-Za-z0-9\-._~%!$&'()*+;=:\[\]]*")

_LENGTH_DIGITS: Final = 18  # a number of this many digits is too many bytes already


class RequestHead:
    """A request's start line and headers.

    Attributes:
        method: as it was sent; methods are case-sensitive.
        path: still percent-encoded, without the host that proxies may put before it.
        query: what follows the path's question mark, in pairs.
        version: "HTTP/1.1", "HTTP/1.0", or another 1.x that a client makes up.
        headers: by their names in lower case; values of one name are joined by commas.
        received: the headers as Tornado has them, which asks them whether a client of HTTP 1.0 stays connected.
    """

    __slots__ = ("headers", "method", "path", "query", "received", "version")

    def __init__(self, start_line: httputil.RequestStartLine, received: httputil.HTTPHeaders) -> None:
        self.method, target, self.version = start_line
        self.path, _, query = target.partition("?")
        if not self.path.startswith("/") and "://" in self.path:  # the absolute form, which proxies send
            self.path = "/" + self.path.partition("://")[2].partition("/")[2]
        self.query = tuple(parse_qsl(query, keep_blank_values=True)) if query else ()
        self.received = received
        self.headers: dict[str, str] = {}
        for name, value in received.get_all():
            key = name.lower()
            self.headers[key] = f"{self.headers[key]},{value}" if key in self.headers else value

    def drop(self, names: Collection[str]) -> None:
        """Forget headers, by their names in lower case."""
        for name in names:
            self.headers.pop(name, None)

    def take_for(self, content_type: str) -> None:
        """Have the body be of this type, whatever its sender calls it."""
        self.headers["content-type"] = content_type

    def check_host(self) -> None:
        """Check that the Host header is valid HTTP; nothing here uses it.

        Raises:
            PayloadError: there is none, or it is not one host.
        """
        host = self.headers.get("host")
        if host is None and self.version != "HTTP/1.0":
            raise PayloadError("a request of HTTP/1.1 needs a Host header")
        if host is not None and not _HOST.fullmatch(host):
            raise PayloadError(f"the Host header is not one host: {host!r}")

    def declared_length(self) -> int:
        """Bytes of the body; 0 where it is not said, or not in digits, which is left to Tornado."""
        declared = self.headers.get("content-length", "")
        return int(declared[:_LENGTH_DIGITS]) if declared.isascii() and declared.isdigit() else 0

    def connection_options(self) -> set[str]:
        """The options of the Connection header, in lower case: "close", "keep-alive"."""
        return {option.strip().lower() for option in self.headers.get("connection", "").split(",")}

    def expects_continue(self) -> bool:
        """Whether the client holds its body back until it is asked for it; asks Tornado to do that."""
        if self.headers.get("expect", "").lower() != "100-continue":
            return False
        if self.version == "HTTP/1.0":  # such clients know no interim answers
            del self.received["Expect"]
            return False
        self.received["Expect"] = "100-continue"  # Tornado knows no other spelling
        return True
