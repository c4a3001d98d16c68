"""Connections that the server has closed and their clients have not. Runs in the front end's event loop.

The kernel resets a socket that is closed with unread data, and a reset makes the client lose what it has not read yet.
So the server ends its side, and ignores the client's data until the client ends its own (RFC 9112, 9.6).
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Final

#: How long a client may take to close its side, and what it may still send.
LINGER_S: Final = 2.0
_MAX_IGNORED_BYTES: Final = 16 << 20
#: How many connections linger at most. Further ones are closed at once.
_MOST: Final = 256


def linger(connection: socket.socket, last_words: bytes = b"") -> None:
    """Send the remaining data as far as the socket takes it, end this side, and wait for the client to end its own.

    The socket itself may be closed at once.
    """
    try:
        rest = socket.socket(fileno=os.dup(connection.fileno()))
    except OSError:  # there is no descriptor
        return
    try:
        if last_words:
            rest.send(last_words)
        rest.shutdown(socket.SHUT_WR)
    except OSError:  # the client has gone
        rest.close()
        return
    if len(_LINGERING) < _MOST:
        _Lingering(rest)
    else:
        rest.close()


def close_lingering() -> None:
    """Wait for no client any more."""
    for lingering in tuple(_LINGERING):
        lingering.close()


class _Lingering:
    """The rest of a connection: read and ignored."""

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
