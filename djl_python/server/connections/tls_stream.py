"""A client's socket over which TLS is spoken. Runs in the front end's event loop.

Tornado's `SSLIOStream` does the work. Failed handshakes and broken records are the client's business: the connection
ends, and the server's log does not fill with them.
"""

from __future__ import annotations

import logging
import socket
import ssl
from contextlib import suppress
from typing import Any, Final

from tornado.iostream import SSLIOStream

from .limits import Connections
from .lingering import linger
from .stream import ClientStream

log = logging.getLogger(__name__)

_NO_TLS: Final = b"this address is https, and the request was plain HTTP\n"
#: The answer to a client that speaks HTTP without TLS.
_PLAIN_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_NO_TLS), _NO_TLS)
)


class TlsClientStream(ClientStream, SSLIOStream):
    """A `ClientStream` over TLS. The handshake is part of what is awaited of a client.

    Raises:
        OSError: the client has gone already.
    """

    def __init__(
        self, accepted: socket.socket, address: Any, context: ssl.SSLContext, connections: Connections | None = None
    ) -> None:
        secured = context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
        super().__init__(secured, address, connections)

    def close_fd(self) -> None:
        """Called by Tornado at the end of the connection."""
        if self.error is None and not self._ssl_accepting:
            self._end_writing()
        super().close_fd()

    def _do_ssl_handshake(self) -> None:
        self._handshake_reading = self._handshake_writing = False
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            self._handshake_reading = True
        except ssl.SSLWantWriteError:
            self._handshake_writing = True
        except (OSError, AttributeError) as error:  # AttributeError: the client had gone before the socket was wrapped
            log.debug("%s: no TLS connection: %s", self.client, error)
            if isinstance(error, ssl.SSLError) and error.reason == "HTTP_REQUEST":
                linger(self.socket, _PLAIN_ANSWER)
            self.close(exc_info=error)
        else:
            self._ssl_accepting = False
            self._finish_ssl_connect()

    def _end_writing(self) -> None:
        with suppress(OSError, ValueError):  # the close alert is sent; waiting for the client's would block
            self.socket.unwrap()

    def _is_connreset(self, e: BaseException) -> bool:
        return isinstance(e, ssl.SSLError) or super()._is_connreset(e)
