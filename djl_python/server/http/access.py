"""Who may do what at which of the server's addresses.

Runs in the front end's event loop. Loading a model runs its code, and descriptions have paths: where nothing opens
them, only clients on this machine get to the routes that manage. Who a client is, the connection says and no header,
which anybody can write; but what a proxy adds shows that the client is elsewhere. A browser on this machine is a client
on it: pages that it has from others are told by what browsers add to their requests, or by the name that they take the
server for.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from ...config import Address, ServerConfig
from ...core.errors import ForbiddenError, RouteError
from ...dialects.shared.base import Kind, Route

#: `ClientStream.client` of a Unix socket's.
UNIX: Final = "unix"
#: What proxies add. Without it, every client of a proxy on this machine would be on this machine.
_OF_PROXIES: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
SAFE_METHODS: Final = ("GET", "HEAD")
_OTHER_SITES: Final = ("cross-site", "same-site")


class Door(enum.Enum):
    """An address of the server, by what is behind it."""

    INFERENCE = enum.auto()  # all but management, which has an address of its own
    LOCAL = enum.auto()  # everything; management for clients on this machine
    OPEN = enum.auto()  # everything, for every client
    MANAGEMENT = enum.auto()  # management, and pages that only show


@dataclass(frozen=True)
class Rights:
    """What a client may do at the address that it uses: manage models, and have them answer."""

    manages: bool
    generates: bool


def doors(config: ServerConfig) -> Mapping[Door, Address]:
    """The addresses to listen on."""
    inference, management = config.inference_address, config.management_address
    if management is not None and management != inference:
        return {Door.INFERENCE: inference, Door.MANAGEMENT: management}
    opened = management is not None or config.management_access == "open"
    return {Door.OPEN if opened else Door.LOCAL: inference}


class Access:
    """What is allowed to the clients of one address."""

    def __init__(self, door: Door, config: ServerConfig) -> None:
        address = doors(config)[door]
        self._door = door
        self._origin = config.cors_allowed_origin
        # Whoever can be reached from elsewhere goes by names that nobody here knows.
        self._own_names = door is Door.LOCAL or (door is Door.MANAGEMENT and is_loopback(address.host))
        self._name = address.host

    def check(self, route: Route, method: str, headers: Mapping[str, str], client: str) -> None:
        """Check that the client may use the route.

        Args:
            headers: the request's, by their names in lower case.
            client: the other end of the connection: an IP address, or `UNIX`.

        Raises:
            RouteError: it is not at this address.
            ForbiddenError: it is not for this client.
        """
        if not route.manages:
            if self._door is Door.MANAGEMENT and route.kind is not Kind.PAGE:
                raise RouteError(f"{route.path} is at inference_address, and this is management_address")
            return
        self._check_manages(f"{method} {route.path}", method, headers, client)

    def rights(self, headers: Mapping[str, str], client: str) -> Rights:
        """What the client may do, for pages that offer it; arguments as in `check`."""
        try:
            self._check_manages("managing", "GET", headers, client)
        except ForbiddenError:
            manages = False
        else:
            manages = True
        return Rights(manages, self._door is not Door.MANAGEMENT)

    def _check_manages(self, what: str, method: str, headers: Mapping[str, str], client: str) -> None:
        if self._door is Door.INFERENCE:
            raise ForbiddenError(f"{what} is answered at management_address only")
        if self._door is Door.LOCAL and not _is_local(headers, client):
            raise ForbiddenError(
                f"{what} is for clients on the server's machine: management_access=open opens it to "
                "all, and management_address gives it an address of its own"
            )
        if client != UNIX:
            self._check_page(method, headers)

    def _check_page(self, method: str, headers: Mapping[str, str]) -> None:
        """Refuse what a browser sends for a page that is not from this server."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._own_names and not self._is_own_name(host):
            raise ForbiddenError(
                f"Host {host!r}: expected localhost or an IP address where models are managed (a page may give this "
                "server any other name)"
            )
        if origin is None:
            foreign = method not in SAFE_METHODS and headers.get("sec-fetch-site", "") in _OTHER_SITES
        else:
            own = origin == self._origin or urlsplit(origin).netloc.lower() == host.lower()
            foreign = not (origin and own)
        if foreign:
            raise ForbiddenError(
                f"Origin {origin or '(of another site)'}: expected this server's own where models are managed, or the "
                "one of cors_allowed_origin"
            )

    def _is_own_name(self, host: str) -> bool:
        name = _host_name(host)
        return not name or name in ("localhost", self._name.lower()) or _is_address(name)


def is_loopback(host: str) -> bool:
    """Whether an IP address, or the name localhost, is this machine's own, which no other can reach."""
    host = host.partition("%")[0]  # an IPv6 address may have its interface behind it
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _is_local(headers: Mapping[str, str], client: str) -> bool:
    return (client == UNIX or is_loopback(client)) and not any(name in headers for name in _OF_PROXIES)


def _host_name(host: str) -> str:
    """The name or address in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
