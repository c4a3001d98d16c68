"""Which clients are on the server's machine. Runs in the front end's event loop.

The connection identifies a client. Headers don't, because anybody can write them; but a proxy's headers show that the
client is elsewhere.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final

#: `ClientStream.client` of a Unix socket's.
UNIX: Final = "unix"
#: Headers that proxies add, in lower case. Without them, every client of a local proxy would count as local.
_OF_PROXIES: Final = frozenset(
    """
    forwarded via x-forwarded x-forwarded-for x-forwarded-host x-forwarded-port x-forwarded-proto x-forwarded-server
    x-original-forwarded-for x-real-ip x-client-ip x-cluster-client-ip true-client-ip x-original-host
    cdn-loop cf-connecting-ip cf-connecting-ipv6 cf-ipcountry cf-ray cf-visitor cf-warp-tag-id
    fastly-client-ip fly-client-ip x-appengine-user-ip x-azure-clientip x-azure-socketip x-envoy-external-address
    tailscale-user-login
    """.split()
)


def is_local(headers: Mapping[str, str], client: str) -> bool:
    """Whether a client is on this machine; `headers` are the request's, by their names in lower case."""
    return (client == UNIX or is_loopback(client)) and _OF_PROXIES.isdisjoint(headers)


def is_loopback(host: str) -> bool:
    """Whether an IP address, or the name localhost, can be reached from this machine only."""
    host = host.partition("%")[0]  # an IPv6 address may have its interface behind it
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
