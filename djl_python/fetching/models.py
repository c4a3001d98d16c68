"""`open_url` for URLs of models and entry points: metadata and link-local addresses are never connected to.

Runs in the threads of the front end and of workers. Whoever names these URLs may load models, whose code this server
runs, and models often lie behind an internal server: private addresses are connected to. The environment's proxies are
used, as urllib does. A proxy resolves the URL's name itself; what is checked then is the URL's host where it is an
address, and the proxy's own address.
"""

from __future__ import annotations

import http.client
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from .addresses import AddressError, is_metadata

#: (host, port) to the host's addresses.
Resolve = Callable[[str, int], list[str]]


def resolved(host: str, port: int, flags: int = 0) -> list[str]:
    """The addresses of a host, as the system resolves it.

    Raises:
        OSError: it has none.
    """
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def open_url(url: str, timeout_s: float, resolve: Resolve = resolved) -> Any:
    """The response to a GET, after at most ten redirects, which lead to http and https only. Close it.

    Args:
        timeout_s: seconds for a connection, and for each read.

    Raises:
        OSError: as urllib raises it; a URLError also for an address that is not connected to.
        http.client.HTTPException, ValueError: as urllib raises them.
    """
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        _Http(resolve),
        _Https(resolve),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener.open(url, timeout=timeout_s)


class _HttpConnection(http.client.HTTPConnection):
    """Connects to addresses that it has checked."""

    def __init__(self, *args: Any, resolve: Resolve = resolved, **more: Any) -> None:
        super().__init__(*args, **more)
        self._resolve = resolve

    def connect(self) -> None:
        host = self.host
        addresses = self._resolve(host, self.port)
        _refuse_metadata(host, addresses)
        failed = OSError(f"{host} has no address")
        try:
            for address in addresses:
                self.host = address
                try:
                    return super().connect()
                except OSError as exc:
                    failed = exc
            raise failed
        finally:
            self.host = host  # whose name TLS verifies


class _HttpsConnection(http.client.HTTPSConnection, _HttpConnection):
    """The same beneath TLS: HTTPSConnection's super() is the checked connection."""


class _Http(urllib.request.HTTPHandler):
    def __init__(self, resolve: Resolve) -> None:
        super().__init__()
        self._resolve = resolve

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        _refuse_written(req.full_url)
        return self.do_open(_HttpConnection, req, resolve=self._resolve)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, resolve: Resolve) -> None:
        super().__init__()
        self._resolve = resolve

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        _refuse_written(req.full_url)
        return self.do_open(_HttpsConnection, req, resolve=self._resolve)


def _refuse_written(url: str) -> None:
    """Check a URL whose host is an address, in any spelling; a proxy would connect to it.

    Raises:
        URLError: it is not connected to.
    """
    host = urlsplit(url).hostname or ""
    try:
        addresses = resolved(host, 0, socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):  # a name
        return
    try:
        _refuse_metadata(host, addresses)
    except AddressError as exc:
        raise urllib.error.URLError(exc) from exc


def _refuse_metadata(host: str, addresses: list[str]) -> None:
    if any(map(is_metadata, addresses)):
        raise AddressError(f"{host} has a link-local address or a cloud's metadata address, where no model is")
