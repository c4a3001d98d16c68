"""Clients' connections, as Tornado serves them, and how long they wait for their clients.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
from collections.abc import Callable, Iterable
from typing import Any, Final

from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPConnection, HTTPServerConnectionDelegate
from tornado.iostream import IOStream, UnsatisfiableReadError

from .http1 import ServerConnection

log = logging.getLogger(__name__)

#: A body that is too large is read to its end, so that the client sees the refusal, unless it is longer than this.
MAX_DISCARDED_BYTES: Final = 1 << 30
#: How long no connection is accepted after the system had no descriptor or no memory for one.
EXHAUSTED_S: Final = 1.0
_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
#: How long a client may take to close its side of a connection that the server has ended, and what it may still send.
LINGER_S: Final = 2.0
_MAX_IGNORED_BYTES: Final = 16 << 20
_ACCEPTED_AT_ONCE: Final = 128  # of one socket, before other things have their turn


class ClientStream(IOStream):
    """A client's socket, which is closed where its client keeps it waiting.

    Tornado's own time limits take a task, a future and a timer for each request, and this takes none.

    Attributes:
        client: the client's IP address, or "unix".
    """

    def __init__(self, accepted: socket.socket, address: Any) -> None:
        super().__init__(accepted)
        self.client = str(address[0]) if isinstance(address, tuple) else "unix"
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = self._due_at = math.inf  # on the loop's clock, in seconds: the timer, and the close
        super().set_nodelay(True)

    def set_nodelay(self, value: bool) -> None:
        """Leave what is written as it is, sent at once: Tornado would change that three times for each request."""

    def await_client(self, at_most_s: float) -> None:
        """Close the connection after so many seconds, unless this, or `wait_no_more`, is called before."""
        if self.closed():  # Tornado awaits another request before it notices
            return
        self._due_at = self._loop.time() + at_most_s
        if self._due_at < self._rings_at:
            self._set_timer()

    def wait_no_more(self) -> None:
        """Leave the connection open for however long its answer takes."""
        self._due_at = math.inf  # the timer finds out

    def close_gently(self) -> None:
        """Close the connection so that the client gets all that was sent.

        A socket that is closed with something unread is reset, and a reset takes from the client what it has not read
        yet. So this side ends, and what the client sends is ignored until it ends its own (RFC 9112, 9.6).
        """
        if self.closed():
            return
        try:
            rest = self.socket.dup()
            rest.shutdown(socket.SHUT_WR)
        except OSError:  # the client has gone, or there is no descriptor
            self.close()
            return
        self.close()
        _Lingering(rest)

    def _find_read_pos(self) -> int | None:
        """Where the current read ends. What is too long for it is read as far as it has come, and refused in words."""
        try:
            return super()._find_read_pos()
        except UnsatisfiableReadError:
            return self._read_buffer_size

    def close_fd(self) -> None:
        """Called by Tornado at the end of the connection."""
        if self._timer is not None:
            self._timer.cancel()
        super().close_fd()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = self._due_at
        self._timer = self._loop.call_at(self._rings_at, self._check_time)

    def _check_time(self) -> None:
        self._timer, self._rings_at = None, math.inf
        if self._due_at <= self._loop.time():
            log.debug("%s has kept its connection waiting for too long: closed", self.client)
            self.close()
        elif self._due_at < math.inf:
            self._set_timer()


class _Lingering:
    """The rest of a connection that the server has ended: read and ignored until the client ends it too."""

    def __init__(self, rest: socket.socket) -> None:
        self._rest = rest
        self._left = _MAX_IGNORED_BYTES
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LINGER_S, self.close)
        loop.add_reader(rest, self._ignore)
        self._loop = loop
        _LINGERING.add(self)

    def _ignore(self) -> None:
        try:
            got = len(self._rest.recv(1 << 16))
        except BlockingIOError:
            return
        except OSError:
            got = 0
        self._left -= got
        if not got or self._left < 0:
            self.close()

    def close(self) -> None:
        """Wait for the client no more."""
        _LINGERING.discard(self)
        self._timer.cancel()
        self._loop.remove_reader(self._rest)
        self._rest.close()


_LINGERING: Final = set[_Lingering]()


class HttpServer(HTTPServer):
    """Tornado's server, with `ClientStream`s, without time limits of its own, and patient without descriptors."""

    def __init__(self, delegate: HTTPServerConnectionDelegate) -> None:
        super().__init__(delegate)
        self.conn_params = HTTP1ConnectionParameters(max_body_size=MAX_DISCARDED_BYTES)
        self._acceptors: list[_Acceptor] = []

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        """Accept connections on these sockets."""
        self._acceptors += [_Acceptor(sock, self._handle_connection) for sock in sockets]

    def stop(self) -> None:
        """Accept no more connections; the sockets are closed."""
        for acceptor in self._acceptors:
            acceptor.stop()
        self._acceptors.clear()
        super().stop()

    async def close_all_connections(self) -> None:
        """Close what is open, also what only its client has not closed."""
        await super().close_all_connections()
        for lingering in tuple(_LINGERING):
            lingering.close()

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        """Serve a new connection."""
        connection = ServerConnection(ClientStream(stream.socket, address), self.conn_params)
        self._connections.add(connection)
        connection.start_serving(self)


class _Acceptor:
    """Accepts the connections of one socket.

    While there is no descriptor for a connection, its socket stays readable: Tornado tries again at once, for ever.
    """

    def __init__(self, listening: socket.socket, accepted: Callable[[socket.socket, Any], None]) -> None:
        self._listening = listening
        self._accepted = accepted
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._go_on()

    def stop(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, address = self._listening.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as exc:
                if exc.errno not in _EXHAUSTED:
                    raise
                log.error("no connection can be accepted: %s; the next try is in %g s", exc.strerror, EXHAUSTED_S)
                self._loop.remove_reader(self._listening)
                self._pause = self._loop.call_later(EXHAUSTED_S, self._go_on)
                return
            self._accepted(connection, address)


def stream_of(connection: HTTPConnection) -> ClientStream:
    """The stream of a connection that an `HttpServer` has accepted."""
    assert isinstance(connection, HTTP1Connection) and isinstance(connection.stream, ClientStream)
    return connection.stream
