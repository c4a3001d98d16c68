"""A client's socket, which is closed where its client keeps it waiting. Runs in the front end's event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from typing import Any

from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPConnection
from tornado.iostream import IOStream, UnsatisfiableReadError

from .limits import Connections
from .lingering import linger

log = logging.getLogger(__name__)


class ClientStream(IOStream):
    """A client's socket, which is closed where its client keeps it waiting.

    Tornado's own time limits take a task, a future and a timer for each request, and this takes none.

    Args:
        accepted: the socket.
        address: the client's, as `accept` gives it.
        connections: counts it.

    Attributes:
        client: the client's IP address, or "unix".
    """

    def __init__(self, accepted: socket.socket, address: Any, connections: Connections | None = None) -> None:
        super().__init__(accepted)
        self.client = str(address[0]) if isinstance(address, tuple) else "unix"
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = self._due_at = math.inf  # on the loop's clock, in seconds: the timer, and the close
        self._head_s = 0.0  # what a request's head may take once it begins; 0 unless one is awaited
        self._has_begun = False  # whether a request has been awaited before
        self._connections = connections or Connections()
        self._connections.opened(self)
        super().set_nodelay(True)

    def set_nodelay(self, value: bool) -> None:
        """Keep TCP_NODELAY on: Tornado would switch it three times for each request."""

    def await_request(self, idle_s: float, head_s: float) -> None:
        """Close the connection unless a request begins within `idle_s` and its head is complete `head_s` later.

        The first one of a connection has begun when it was accepted.
        """
        if self.closed():  # Tornado awaits another request before it notices
            return
        self._connections.awaits_request(self)
        if self._has_begun and not self._read_buffer_size:
            self._head_s = head_s
            self.await_client(idle_s)
        else:
            self._has_begun = True
            self.await_client(min(idle_s, head_s))

    def await_body(self, at_most_s: float) -> None:
        """Close the connection unless the rest of the request comes within so many seconds: its head is complete."""
        self._connections.has_request(self)
        self.await_client(at_most_s)

    def await_client(self, at_most_s: float) -> None:
        """Close the connection after so many seconds, unless this, or `wait_no_more`, is called before."""
        if self.closed():
            return
        self._due_at = self._loop.time() + at_most_s
        if self._due_at < self._rings_at:
            self._set_timer()

    def wait_no_more(self) -> None:
        """Leave the connection open for however long its answer takes."""
        self._due_at = math.inf  # the timer finds out

    def close_gently(self) -> None:
        """Close the connection so that the client gets all that was sent."""
        if not self.closed():
            self._end_writing()
            linger(self.socket)
            self.close()

    def read_from_fd(self, buf: bytearray | memoryview) -> int | None:
        """Called by Tornado: read what has come."""
        count = super().read_from_fd(buf)
        if count and self._head_s:  # a request begins
            self._connections.awaits_request(self)
            self.await_client(self._head_s)
            self._head_s = 0.0
        return count

    def _end_writing(self) -> None:
        """Say that nothing more will be sent, where the socket's end does not say it."""

    def _find_read_pos(self) -> int | None:
        """The end of the current read. A head that is too long is read as far as it has come, and gets an answer."""
        try:
            return super()._find_read_pos()
        except UnsatisfiableReadError:
            return self._read_buffer_size

    def close_fd(self) -> None:
        """Called by Tornado at the end of the connection."""
        if self._timer is not None:
            self._timer.cancel()
        self._connections.closed(self)
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


def stream_of(connection: HTTPConnection) -> ClientStream:
    """The stream of a connection that an `HttpServer` has accepted."""
    assert isinstance(connection, HTTP1Connection) and isinstance(connection.stream, ClientStream)
    return connection.stream
