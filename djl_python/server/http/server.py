"""Tornado's HTTP server on the clients' connections that are accepted here. Runs in the front end's event loop."""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
from collections.abc import Callable, Iterable
from typing import Any, Final

from tornado.http1connection import HTTP1ConnectionParameters
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerConnectionDelegate

from ...core.errors import UnavailableError
from ...formats.http_rules import phrase_of
from ..connections.limits import Connections
from ..connections.lingering import close_lingering, linger
from ..connections.stream import ClientStream
from ..connections.tls_stream import TlsClientStream
from ..tls.certificates import Certificates
from .answers import error_answer
from .http1 import ServerConnection
from .listening import check_descriptors

log = logging.getLogger(__name__)

#: A body that is too large is read to its end, so that the client sees the refusal, unless it is longer than this.
MAX_DISCARDED_BYTES: Final = 1 << 30
#: How long no connection is accepted after the system had no descriptor or no memory for one.
EXHAUSTED_S: Final = 1.0
_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_OWN_DESCRIPTORS: Final = errno.EMFILE  # this process has no more: closing a connection gives one back
_ACCEPTED_AT_ONCE: Final = 128  # of one socket, before other things have their turn


class HttpServer(HTTPServer):
    """Tornado's server, with `ClientStream`s, without time limits of its own, and patient without descriptors.

    Args:
        delegate: answers the requests.
        connections: counts and bounds the connections.
        certificates: of a server that speaks TLS.
    """

    def __init__(
        self,
        delegate: HTTPServerConnectionDelegate,
        connections: Connections | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        super().__init__()  # it ignores arguments: Tornado gives them to `initialize`
        self.conn_params = HTTP1ConnectionParameters(max_body_size=MAX_DISCARDED_BYTES)
        self._open = connections or Connections()
        self._certificates = certificates
        self._acceptors: list[_Acceptor] = []

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        """Accept connections on these sockets."""
        self._acceptors += [_Acceptor(sock, self.serve_connection, self._open.make_room) for sock in sockets]

    def stop(self) -> None:
        """Accept no more connections; the sockets are closed."""
        for acceptor in self._acceptors:
            acceptor.stop()
        self._acceptors.clear()
        super().stop()

    def initialize(self, delegate: HTTPServerConnectionDelegate, *_: object) -> None:  # type: ignore[override]
        """Called by Tornado, before `__init__` and with its arguments."""
        super().initialize(delegate)

    async def close_all_connections(self) -> None:
        """Close all connections, including lingering ones."""
        await super().close_all_connections()
        close_lingering()

    def serve_connection(self, accepted: socket.socket, address: Any) -> None:
        """Serve a new connection, unless there are too many."""
        client = str(address[0]) if isinstance(address, tuple) else "unix"
        if why := self._open.refusal(client):
            log.debug("%s: refused: %s", client, why)
            if self._certificates is None:
                linger(accepted, _refusal(why))
            accepted.close()
            return
        try:
            stream = self._stream(accepted, address)
        except OSError as exc:  # the client has gone
            log.debug("%s: no connection: %s", client, exc)
            accepted.close()
            return
        connection = ServerConnection(stream, self.conn_params)
        self._connections.add(connection)
        connection.start_serving(self)

    def _stream(self, accepted: socket.socket, address: Any) -> ClientStream:
        if self._certificates is None:
            return ClientStream(accepted, address, self._open)
        return TlsClientStream(accepted, address, self._certificates.context(), self._open)


def _refusal(why: str) -> bytes:
    """The answer to a refused connection."""
    answer = error_answer(UnavailableError(why), None, None)
    headers = {"Content-Type": "application/json", **answer.headers, "X-Content-Type-Options": "nosniff"}
    headers |= {"Connection": "close", "Content-Length": str(len(answer.body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {answer.status} {phrase_of(answer.status)}\r\n{lines}\r\n".encode() + answer.body


class _Acceptor:
    """Accepts the connections of one socket.

    While there is no descriptor for a connection, its socket stays readable: Tornado tries again at once, for ever.
    Descriptors that workers need to start again are left to them. Silent connections make room for new ones; where all
    have requests, new clients wait.
    """

    def __init__(
        self, listening: socket.socket, accepted: Callable[[socket.socket, Any], None], make_room: Callable[[], bool]
    ) -> None:
        self._listening = listening
        self._accepted = accepted
        self._make_room = make_room
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
        for accepted in range(_ACCEPTED_AT_ONCE):
            try:
                check_descriptors(self._listening.fileno())
                connection, address = self._listening.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as exc:
                if exc.errno not in _EXHAUSTED:
                    raise
                if not select.select([self._listening], [], [], 0)[0]:
                    return  # nobody waits: none has to make room
                if exc.errno == _OWN_DESCRIPTORS and self._make_room():
                    continue
                if accepted:
                    return  # those that were just accepted are not known to be silent before the loop's next turn
                log.error("no connection can be accepted: %s; the next try is in %g s", exc.strerror, EXHAUSTED_S)
                self._loop.remove_reader(self._listening)
                self._pause = self._loop.call_later(EXHAUSTED_S, self._go_on)
                return
            self._accepted(connection, address)
