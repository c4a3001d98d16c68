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
from contextlib import suppress
from typing import Any, Final

from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPConnection, HTTPServerConnectionDelegate
from tornado.iostream import IOStream, UnsatisfiableReadError

log = logging.getLogger(__name__)

#: A body that is too large is read to its end, so that the client sees the refusal, unless it is longer than this.
MAX_DISCARDED_BYTES: Final = 1 << 30
#: How long no connection is accepted after the system had no descriptor or no memory for one.
EXHAUSTED_S: Final = 1.0
_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
#: The answer to a head that is longer than Tornado reads.
_TOO_LONG: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"the request's path and headers are too long\n"
)
_DISCARDED_READS: Final = 16  # of 64 KiB, behind such a head
_ACCEPTED_AT_ONCE: Final = 128  # of one socket, before other things have their turn


class ClientStream(IOStream):
    """A client's socket, which is closed where its client keeps it waiting.

    Tornado's own time limits take a task, a future and a timer for each request, and this takes none.

    Attributes:
        client: the client's IP address, or "unix".
        reads_head: whether a request's path and headers have not been read to their end.
    """

    def __init__(self, accepted: socket.socket, address: Any) -> None:
        super().__init__(accepted)
        self.client = str(address[0]) if isinstance(address, tuple) else "unix"
        self.reads_head = False
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

    def close(self, exc_info: Any = False) -> None:
        """Close the connection; Tornado does where a head is too long, and says nothing to the client."""
        if isinstance(exc_info, UnsatisfiableReadError) and self.reads_head and not self.closed():
            with suppress(OSError):
                self.socket.send(_TOO_LONG)
                self.socket.shutdown(socket.SHUT_WR)
                for _ in range(_DISCARDED_READS):  # what is unread has the kernel reset the connection: no answer
                    if not self.socket.recv(1 << 16):
                        break
        super().close(exc_info)

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

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        """Serve a new connection."""
        super().handle_stream(ClientStream(stream.socket, address), address)


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
