"""A transport of httpx2 for URLs that requests name: it connects to addresses that it has checked, and to no others.

Runs in the worker's event loop; names are resolved in a few threads of its own. The environment's proxies are not
used: a proxy resolves names itself, so that nothing checked here would hold.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import httpx2

from .addresses import PUBLIC, AddressError, host_key, is_metadata, is_public

#: (host, port) to the host's addresses.
Resolve = Callable[[str, int], Awaitable[list[str]]]

#: Seconds for a connection to one of a host's addresses, before the next one is tried.
CONNECT_S: Final = 3.0
_RESOLVING_THREADS: Final = 8


class CheckedTransport(httpx2.AsyncBaseTransport):
    """Sends requests to hosts of a list, at addresses that are public, or that the list names. Close it.

    TLS verifies the host's name, and asks for it (SNI). A connection serves one request: the pool knows connections by
    their address, and a certificate for one name says nothing about another one.

    Args:
        allowed: hosts, as from `host_key`, whose addresses may also be private; `PUBLIC` stands for all with public
            addresses.
        resolve: resolves a name; raises OSError. None: the system's resolver.
    """

    def __init__(self, allowed: Collection[str], resolve: Resolve | None = None) -> None:
        self._allowed = frozenset(allowed)
        self._threads = concurrent.futures.ThreadPoolExecutor(_RESOLVING_THREADS, thread_name_prefix="resolve")
        self._resolve = resolve or self._ask_system
        self._inner = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_keepalive_connections=0))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request to the first of the host's addresses that can be connected to.

        Raises:
            AddressError: the host, or one of its addresses, is not connected to.
            OSError: the name can't be resolved.
            httpx2.TransportError: no address answers.
        """
        url = request.url
        host = url.raw_host.decode("ascii")
        failed: httpx2.TransportError = httpx2.ConnectError(f"{host} has no address", request=request)
        addresses = await self._checked(host, url.port or (443 if url.scheme == "https" else 80))
        given = request.extensions.get("timeout", {})
        for address in addresses:
            timeouts = given if address == addresses[-1] else {**given, "connect": CONNECT_S}
            sent = httpx2.Request(
                request.method,
                url.copy_with(host=address),
                headers=request.headers,  # Host is already in there
                extensions={**request.extensions, "sni_hostname": host.rstrip("."), "timeout": timeouts},
            )
            try:
                return await self._inner.handle_async_request(sent)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as exc:
                failed = exc
        raise failed

    async def aclose(self) -> None:
        """Close the connections, and end the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._inner.aclose()

    async def _checked(self, host: str, port: int) -> list[str]:
        listed = host_key(host) in self._allowed
        if not listed and PUBLIC not in self._allowed:
            raise AddressError(f"{host} is not in the list of allowed hosts")
        addresses = await self._resolve(host, port)
        for address in addresses:
            if is_metadata(address) or not (listed or is_public(address)):
                raise AddressError(f"{host} has an address that is not public")
        return addresses

    async def _ask_system(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        entries = await loop.run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return list(dict.fromkeys(str(entry[4][0]) for entry in entries))
