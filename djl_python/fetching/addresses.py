"""Which addresses may be connected to, and which hosts may be named.

Runs in every process. Names come as getaddrinfo takes them, which also reads IPv4 addresses in octal, in hexadecimal
and as one number; the rules see only what it found.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address

#: Where clouds hand out credentials, beside the link-local 169.254.169.254: AWS and Google by IPv6, Alibaba, Oracle's
#: older machines, and Azure, whose address is a public one.
METADATA: Final = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "192.0.0.192", "168.63.129.16"))
)
#: NAT64 prefixes (RFC 6052, RFC 8215): the last four bytes are an IPv4 address.
_NAT64: Final = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
#: IPv4-compatible addresses (RFC 4291, deprecated).
_COMPATIBLE: Final = ipaddress.ip_network("::/96")
#: The entry of a list of hosts that stands for all hosts with public addresses.
PUBLIC: Final = "*"


class AddressError(OSError):
    """A host, or an address of it, is not connected to."""


def is_metadata(address: str) -> bool:
    """Whether an address is link-local, or one at which clouds hand out credentials."""
    return any(ip in METADATA or ip.is_link_local for ip in _meant(ipaddress.ip_address(address)))


def is_public(address: str) -> bool:
    """Whether an address is a global unicast one, and the IPv4 address in it, if there is one, too."""
    return not is_metadata(address) and all(
        ip.is_global and not ip.is_multicast and not (ip.version == 6 and ip.is_site_local)
        for ip in _meant(ipaddress.ip_address(address))
    )


def host_key(host: str) -> str:
    """A host (IDNA as ASCII) as lists of hosts have it: lower case, no dot at the end, IPv6 short, without brackets."""
    bare = host.strip().lower().removeprefix("[").removesuffix("]").rstrip(".")
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return bare


def _meant(ip: Ip) -> Iterator[Ip]:
    """The addresses that packets to `ip` may reach: itself, and an IPv4 address that is written in it."""
    if isinstance(ip, ipaddress.IPv4Address):
        yield ip
        return
    if ip.ipv4_mapped is not None:
        yield ip.ipv4_mapped
        return
    yield ip
    if ip.sixtofour is not None:
        yield ip.sixtofour
    if ip.teredo is not None:
        yield from ip.teredo
    if ip in _COMPATIBLE or any(ip in network for network in _NAT64):
        yield ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
