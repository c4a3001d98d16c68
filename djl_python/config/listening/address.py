"""Where a server listens. Runs in the front end."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

import msgspec

_PORTS: Final = {"http": 80, "https": 443}


class Address(msgspec.Struct, frozen=True):
    """Where to listen: host and port, or the path of a Unix socket. `secure`: TLS is spoken there."""

    host: str = "127.0.0.1"
    port: int = 8080
    unix_path: str = ""
    secure: bool = False

    def __str__(self) -> str:
        if self.unix_path:
            return f"unix:{self.unix_path}"
        scheme, host = "https" if self.secure else "http", f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read http://host[:port], https://host[:port] (ports 80 and 443 when there is none) or unix:/path.

        Raises:
            ValueError: neither.
        """
        if text.startswith("unix:"):
            path = text.removeprefix("unix:")
            if not path.startswith("/") or not path.strip("/"):
                raise ValueError("expected an absolute path after unix:")
            return cls(host="", port=0, unix_path="/" + path.lstrip("/"))
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise ValueError("expected http://host:port with a port from 0 to 65535") from None
        if parts.scheme not in _PORTS or not parts.hostname or parts.path.strip("/") or parts.query:
            raise ValueError("expected http://host:port, https://host:port or unix:/path")
        try:
            parts.hostname.encode("idna")  # as getaddrinfo does
        except UnicodeError:
            raise ValueError("expected a host, of which no part between dots is empty or too long") from None
        port = _PORTS[parts.scheme] if port is None else port
        return cls(host=parts.hostname, port=port, secure=parts.scheme == "https")
