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

import msgspec

from ...config import Address
from ...core.errors import ConfigError

try:
    import fcntl
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

BACKLOG = 1024
#: Descriptors that clients don't get by default: for workers, models, files of batches. A quarter of a low limit.
RESERVED = 1024
#: Descriptors that clients' connections leave free whatever the settings, at most a quarter of all: to start a worker
#: again takes some.
RESERVED_DESCRIPTORS = 64


class SocketListener:
    """The sockets of an address, bound but not listening yet; port 0 becomes a free port, the same for all of them.

    Raises:
        ConfigError: the address is in use, not this machine's, or not allowed.

    Attributes:
        address: the address that clients use, with the port that was bound.
    """

    def __init__(self, address: Address) -> None:
        self._unix: _UnixPath | None = None
        try:
            if address.unix_path:
                self._unix = _UnixPath(Path(address.unix_path))
                self.sockets = [self._unix.socket]
                self.address = address
            else:
                self.sockets = _bind_tcp(address)
                self.address = msgspec.structs.replace(address, port=self.sockets[0].getsockname()[1])
        except OSError as exc:
            raise _refusal(address, exc) from exc

    def listen(self) -> None:
        """Start listening.

        Raises:
            ConfigError: another server, bound to the same address at the same time, listens already.
        """
        try:
            for sock in self.sockets:
                sock.listen(BACKLOG)
        except OSError as exc:
            raise _refusal(self.address, exc) from exc

    def close(self) -> None:
        """Stop listening, and release the address for another server; may be called again."""
        _close(self.sockets)
        if self._unix is not None:
            self._unix.release()
            self._unix = None


def allow_descriptors() -> None:
    """Raise the limit on file descriptors to the most allowed: each connection is one, and 1,024 is the usual limit."""
    if resource is not None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(OSError, ValueError):  # macOS reports an unlimited maximum that it does not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def connections_at_most() -> int | None:
    """How many connections leave descriptors for everything else; None: there is no limit."""
    if resource is None:
        return None
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return None
    return max(1, descriptors - min(RESERVED, descriptors // 4))


def check_descriptors(some: int) -> None:
    """Check that there is a descriptor for one more connection. `some` is any that is open.

    Raises:
        OSError: EMFILE: the next one, the lowest that is free, is one of those that are reserved, or there is none.
    """
    if resource is None:
        return
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    following = os.dup(some)
    os.close(following)
    if most != resource.RLIM_INFINITY and following >= most - min(RESERVED_DESCRIPTORS, most // 4):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _refusal(address: Address, exc: OSError) -> ConfigError:
    if exc.errno == errno.EADDRINUSE:
        return ConfigError(f"{address} is in use by another process; choose another port with -p")
    return ConfigError(f"can't listen on {address}: {exc.strerror or exc}")


def _bind_tcp(address: Address) -> list[socket.socket]:
    addresses = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    port, refusal = address.port, OSError(errno.EADDRNOTAVAIL, "no such address")
    for family, kind, protocol, _, where in dict.fromkeys(addresses):
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


class _UnixPath:
    """A socket bound to a path, and a locked file beside it that reserves the path.

    The socket's file alone does not tell a server that was killed from one that does not listen yet. The kernel removes
    the lock when its process ends, however it ends.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock_path = Path(f"{path}.lock")
        self._lock = _locked(self._lock_path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        try:
            if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and not _answers(path):
                path.unlink()  # left by a server that was killed
            self.socket.bind(os.fspath(path))
        except OSError:
            self.socket.close()
            self._unlock()
            raise
        self._status = path.stat()

    def release(self) -> None:
        """Remove the socket's file, unless something else has replaced it, and release the lock."""
        with suppress(FileNotFoundError):
            if os.path.samestat(self._path.stat(), self._status):
                self._path.unlink()
        self._unlock()

    def _unlock(self) -> None:
        self._lock_path.unlink(missing_ok=True)  # still locked: it can't be another server's
        os.close(self._lock)


def _locked(path: Path) -> int:
    """A descriptor of the file, locked until it is closed; a missing file is created.

    Raises:
        OSError: with EADDRINUSE if another process has the lock.
    """
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), path.stat()):
                    return lock
        except BlockingIOError as exc:
            os.close(lock)
            raise OSError(errno.EADDRINUSE, "locked") from exc
        except OSError:
            os.close(lock)
            raise
        os.close(lock)  # its owner removed the file between the two calls: this lock protects nothing


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, suppress(ConnectionRefusedError):
        probe.connect(os.fspath(path))
        return True
    return False


def _close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
