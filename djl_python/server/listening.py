"""The listening sockets: bound early, so that a port in use is noticed before a model is loaded; listening later.

Runs in the front end, at start-up.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from ..config import Address
from ..errors import ConfigError

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

BACKLOG = 1024


def bind(address: Address) -> list[socket.socket]:
    """Sockets bound to `address`, not listening yet; port 0 becomes a free port, the same for all of them.

    Raises:
        ConfigError: the address is in use, not this machine's, or not allowed.
    """
    try:
        return [_bind_unix(Path(address.unix_path))] if address.unix_path else _bind_tcp(address)
    except OSError as exc:
        raise _refusal(address, exc) from exc


def bound_address(sockets: list[socket.socket], wanted: Address) -> Address:
    """The address that clients use: `wanted`, with the port that was bound."""
    if wanted.unix_path:
        return wanted
    return Address(wanted.host, sockets[0].getsockname()[1])


def listen(sockets: list[socket.socket]) -> None:
    """Start listening.

    Raises:
        ConfigError: another server, bound to the same address at the same time, listens already.
    """
    try:
        for sock in sockets:
            sock.listen(BACKLOG)
    except OSError as exc:
        name = sock.getsockname()
        raise _refusal(Address(unix_path=name) if isinstance(name, str) else Address(*name[:2]), exc) from exc


def allow_descriptors() -> None:
    """Raise the limit on file descriptors to the most allowed: each connection is one, and 1,024 is the usual limit."""
    if resource is not None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(OSError, ValueError):  # macOS reports an unlimited maximum that it does not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _refusal(address: Address, exc: OSError) -> ConfigError:
    if exc.errno == errno.EADDRINUSE:
        return ConfigError(f"{address} is in use by another process; choose another port with -p")
    return ConfigError(f"can't listen on {address}: {exc.strerror or exc}")


def _bind_tcp(address: Address) -> list[socket.socket]:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    port, refusal = address.port, OSError(errno.EADDRNOTAVAIL, "no such address")
    for family, kind, protocol, _, where in dict.fromkeys(found):
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            sock.bind((where[0], port, *where[2:]))
        except OSError as exc:
            sock.close()
            if exc.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):  # localhost may have one family only
                _close(sockets)
                raise
            refusal = exc
        else:
            port = sock.getsockname()[1]
            sockets.append(sock)
    if not sockets:
        raise refusal
    return sockets


def _bind_unix(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and not _answers(path):
        path.unlink()  # left by a server that was killed
    try:
        sock.bind(os.fspath(path))
    except OSError:
        sock.close()
        raise
    return sock


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, suppress(ConnectionRefusedError):
        probe.connect(os.fspath(path))
        return True
    return False


def _close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
