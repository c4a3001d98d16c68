"""Networks by their addresses: `trusted_proxies`. Runs in the front end."""

from __future__ import annotations

import functools
import ipaddress
from typing import Final

import msgspec

#: Stands for clients of a Unix socket, which have no address.
UNIX: Final = "unix"


class Networks(msgspec.Struct, frozen=True):
    """Addresses and networks, as text."""

    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join(self.names)

    @classmethod
    def parse(cls, text: str) -> Networks:
        """Read addresses, networks (10.0.0.0/8) and `unix`, with commas between them.

        Raises:
            ValueError: one is none of these.
        """
        names = tuple(filter(None, (name.strip() for name in text.split(","))))
        for name in names:
            try:
                if name != UNIX:
                    ipaddress.ip_network(name)
            except ValueError:
                raise ValueError(
                    f"expected addresses, networks such as 10.0.0.0/8, or {UNIX}, with commas between them; {name} is "
                    "none of these"
                ) from None
        return cls(names)

    def __contains__(self, client: str) -> bool:
        """Whether a client's address, or `unix`, is among them."""
        if not self.names or client == UNIX:
            return client in self.names
        try:
            address = ipaddress.ip_address(client.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None) or address
        return any(mapped in _network(name) for name in self.names if name != UNIX)


@functools.lru_cache(maxsize=1024)
def _network(name: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    return ipaddress.ip_network(name)
