"""Counts connections, in all and by address, and limits them.

Runs in the front end's event loop.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from typing import Protocol

log = logging.getLogger(__name__)


class Closable(Protocol):
    """A connection, as far as it is counted. `client`: an IP address, or "unix"."""

    client: str

    def close(self) -> None:
        """Close it."""
        ...


class Connections:
    """The open connections of a server.

    Args:
        at_most: in all; None: any number.
        of_an_address: of one IP address that is not this machine's, or one /64 of IPv6; None: any number.
    """

    def __init__(self, at_most: int | None = None, of_an_address: int | None = None) -> None:
        self._at_most = at_most
        self._of_an_address = of_an_address
        self._of = Counter[str]()
        self._awaited: dict[Closable, None] = {}  # the server waits for these clients; longest first
        self.count = 0

    def refusal(self, client: str) -> str:
        """Why no further connection of this client is taken; "" if it is.

        Above the limit, an idle one is closed for it, see `make_room`.
        """
        network = _network(client)
        if self._of_an_address is not None and network and self._of[network] >= self._of_an_address:
            return f"{network} has {self._of_an_address} connections already (max_connections_per_address)"
        if self._at_most is not None and self.count >= self._at_most and not self.make_room():
            return f"there are {self.count} connections already (max_connections)"
        return ""

    def make_room(self) -> bool:
        """Close the connection whose client has been silent for longest; whether there was one."""
        oldest = next(iter(self._awaited), None)
        if oldest is None:
            return False
        log.debug("%s: closed, as it waits for a request and there are %d connections", oldest.client, self.count)
        oldest.close()
        return True

    def opened(self, connection: Closable) -> None:
        """Count a connection."""
        self.count += 1
        if network := _network(connection.client):
            self._of[network] += 1

    def awaits_request(self, connection: Closable) -> None:
        """Note that the server waits for a request, or from now on for the rest of its head."""
        self._awaited.pop(connection, None)
        self._awaited[connection] = None

    def has_request(self, connection: Closable) -> None:
        """Note that a request's head has come."""
        self._awaited.pop(connection, None)

    def closed(self, connection: Closable) -> None:
        """Count a connection no more."""
        self.count -= 1
        self._awaited.pop(connection, None)
        if network := _network(connection.client):
            self._of[network] -= 1
            if not self._of[network]:
                del self._of[network]


def _network(client: str) -> str:
    """The network that counts as one address; "" for this machine's own."""
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return "" if address.is_loopback else f"{ipaddress.ip_network((address, 64), strict=False)}"
        address = address.ipv4_mapped
    return "" if address.is_loopback else str(address)
