"""Which pages in browsers may use the server. Runs in the front end's event loop.

A browser on this machine, or in its network, is a client like any other, but shows pages of other sites. Headers that
browsers add identify such pages; where a page's own name leads to this server (DNS rebinding), that name does.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from ...config import Address, ServerConfig
from ...config.listening.names import listed
from ...core.access.scopes import Scope
from ...core.errors import ForbiddenError
from ...formats.forms import media_type
from ...formats.json_framing import JSON
from .clients import is_loopback

SAFE_METHODS: Final = ("GET", "HEAD")
_OTHER_SITES: Final = ("cross-site", "same-site")
#: Names below these lead to nobody's server on the Internet (RFC 6761; ICANN, 2024: private use). Containers reach
#: their host as host.docker.internal.
_PRIVATE: Final = (".localhost", ".internal")
ANY: Final = "*"


class Pages:
    """The pages that may use the server at one of its addresses.

    Args:
        address: where the server listens.
        manages_locally: only clients on this machine manage models there.
    """

    def __init__(self, address: Address, config: ServerConfig, *, manages_locally: bool) -> None:
        self._hosts = listed(config.allowed_hosts)
        self._origins = listed(config.cors_allowed_origin)
        self._name = address.host.lower()
        # A server that can be reached from elsewhere has names that are unknown here.
        self._on_loopback = is_loopback(address.host)
        self._manages_under_own_name = manages_locally or self._on_loopback

    def check(self, scope: Scope, method: str, headers: Mapping[str, str], *, any_type: bool = False) -> None:
        """Check that the page that sends a request, if any, may use the server.

        Args:
            scope: the route's.
            headers: by their names in lower case.
            any_type: whether the route takes bodies of any content type. Where it takes JSON alone, browsers ask the
                server before they send that for a page of another site.

        Raises:
            ForbiddenError: it may not.
        """
        if scope is Scope.PROBE:
            return
        manages = scope is Scope.MANAGE
        host = headers.get("host", "")
        named = self._on_loopback or self._hosts or (manages and self._manages_under_own_name)
        if named and not self._is_known(host):
            raise ForbiddenError(
                f"Host {host!r}: expected localhost, an IP address, or one of allowed_hosts (a page may give this "
                "server any other name)"
            )
        # Forms, text and bodies without a type are sent unasked (the Fetch standard's CORS-safelisted requests).
        unasked = any_type and media_type(headers.get("content-type", "")) != JSON
        if (self._on_loopback or manages or unasked) and self._is_foreign(method, headers, host, manages=manages):
            raise ForbiddenError(
                f"Origin {headers.get('origin') or '(of another site)'}: expected this server's own, or one of "
                f"cors_allowed_origin{', by its name, where models are managed' if manages else ''}"
            )

    def _is_foreign(self, method: str, headers: Mapping[str, str], host: str, *, manages: bool) -> bool:
        if ANY in self._origins and not manages:
            return False
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "")
        if origin is None:
            return method not in SAFE_METHODS and site in _OTHER_SITES
        # A browser says same-origin of the name that it knows, also where a proxy makes another Host of it.
        own = site == "same-origin" or urlsplit(origin).netloc.lower() == host.lower()
        return not origin or not (own or origin.lower() in self._origins)

    def _is_known(self, host: str) -> bool:
        name = _host_name(host)
        if not name or name in ("localhost", self._name) or name.endswith(_PRIVATE) or _is_address(name):
            return True
        _, _, above = name.partition(".")
        parents = [above]
        while above:
            _, _, above = above.partition(".")
            parents.append(above)
        return not self._hosts.isdisjoint({ANY, name, *(f"*.{parent}" for parent in parents if parent)})


def _host_name(host: str) -> str:
    """The name or address in a Host header, without its port, and without the dot that ends a complete name."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return (host.rpartition(":")[0] if ":" in host else host).lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
