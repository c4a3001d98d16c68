"""TLS for what speaks over plain sockets: a relay between an encrypted connection and one end of a socket pair.

Runs in the event loops of the front end and of agents, where workers on other machines connect with TLS.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

#: Bytes that are read at a time.
_PIECE_BYTES: Final = 1 << 18

_relays: Final[set[asyncio.Task[None]]] = set()


async def secured(
    sock: socket.socket, context: ssl.SSLContext, *, server_side: bool, within_s: float
) -> tuple[socket.socket, Callable[[], None]]:
    """A socket for the plain bytes of a connection that is encrypted from now on, and a function that cuts it.

    When one connection closes, so does the other: with TLS's close_notify, for which the peer has half a minute.
    The function closes both at once.

    Args:
        sock: belongs to the relay from now on; it is closed if TLS can't be agreed on.
        within_s: how long agreeing on it may take, in seconds.

    Raises:
        OSError: the peer speaks no TLS, or its certificate is not the expected one.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_PIECE_BYTES, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    try:
        if server_side:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, sock, ssl=context, ssl_handshake_timeout=within_s
            )
        else:
            transport, _ = await loop.create_connection(
                lambda: protocol, sock=sock, ssl=context, server_hostname="", ssl_handshake_timeout=within_s
            )
    except BaseException:
        sock.close()
        raise
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    ends: tuple[socket.socket, ...] = ()
    try:
        ends = ours, theirs = socket.socketpair()
        ours.setblocking(False)
        plain_reader, plain_writer = await asyncio.open_connection(sock=ours, limit=_PIECE_BYTES)
    except BaseException:
        transport.abort()
        for end in ends:
            end.close()
        raise
    for source, sink in ((reader, plain_writer), (plain_reader, writer)):
        task = loop.create_task(_relay(source, sink))
        _relays.add(task)
        task.add_done_callback(_relays.discard)
    return theirs, transport.abort


async def _relay(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Pass on what comes until either side closes."""
    try:
        while piece := await source.read(_PIECE_BYTES):
            sink.write(piece)
            await sink.drain()
    except OSError:  # a connection that breaks off ends the same as one that is closed
        pass
    finally:
        sink.close()
