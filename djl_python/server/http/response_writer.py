"""The answer to an HTTP request: head, body, and how much its client has not taken yet.

Runs in the front end's event loop. Writes to Tornado's connection directly: a piece of a stream costs one write and
nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from tornado import httputil
from tornado.http1connection import HTTP1Connection

from ...formats.http_rules import BODILESS, HEADER_NAME, HEADER_VALUE, SERVERS_OWN, phrase_of
from ..connections.stream import stream_of
from .base_headers import BaseHeaders
from .draining import Draining
from .requests.request_head import RequestHead

log = logging.getLogger(__name__)

#: Unsent bytes of an answer at which its client is too slow.
MAX_UNSENT_BYTES: Final = 8 << 20
#: `on_taken` is called each time that a client has taken this much of a stream.
TAKEN_EVERY_BYTES: Final = 256 << 10


class ResponseWriter:
    """One answer: `start`, then `write` until its last piece, then `finish`; or `break_off` or `abandon` at any time.

    Args:
        draining: tracks the answer until the kernel has taken all of it.
        request_id: sent in a header.
        on_taken: called with the number of further bytes that the kernel has taken for the client.

    Attributes:
        status: of the answer; 0 before `start`.
        headers: those that `start` was given.
        begun: whether the head has been sent.
        ended: whether nothing more is written.
        close_after: whether the connection is closed after the answer.
        reads_on: whether that waits for `read_all`, as more of the request comes.
        log_extra: of the model that answers.
    """

    def __init__(
        self,
        base_headers: BaseHeaders,
        draining: Draining,
        connection: HTTP1Connection,
        head: RequestHead,
        request_id: str,
        on_taken: Callable[[int], None],
    ) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.begun = self.ended = self.close_after = self.reads_on = False
        self.log_extra: dict[str, str] = {}
        self._base_headers = base_headers
        self._draining = draining
        self._connection = connection
        self._socket = connection.stream.socket
        self._behind = False  # whether the stream may have something to send
        self._head = head
        self._request_id = request_id
        self._on_taken = on_taken
        self._bodiless = self._chunked = False
        self._untold_bytes = 0  # written, and not yet reported as taken

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Keep status and headers until the first piece of the body, which tells whether it is the whole body."""
        self.status, self.headers = status, headers

    def write(self, data: bytes, last: bool) -> None:
        """Write a piece of the body, directly into the socket if it has room.

        Tornado's own write costs two futures and an event loop iteration per piece, and nothing awaits them. Between
        two steps of an engine everything falls out of the caches: what is not looked at here, the stream above all,
        need not come back.

        Raises:
            StreamBufferFullError: the client is too slow.
        """
        if not self.begun:
            self._send_head(data, last)
        elif data and not self._bodiless:
            framed = b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data
            try:
                sent = 0 if self._behind else self._socket.send(framed)
            except OSError:
                sent = 0  # no room, or the client has gone: the stream waits, or notices
            if sent < len(framed):
                self._send_later(framed[sent:])
        self._untold_bytes += len(data)
        if self._untold_bytes >= TAKEN_EVERY_BYTES and not last:
            self._report_when_taken()

    async def taken(self) -> None:
        """Wait until the kernel has taken everything written so far.

        Raises:
            StreamClosedError: the client has gone.
        """
        if self._connection.stream.writing():
            await self._connection.stream.write(b"")

    def finish(self) -> None:
        """End the answer after its last piece.

        If the connection ends with it, Tornado is not told: it knows only of the head, and would close before the rest
            is sent, or serve a pipelined request.
        """
        self.ended = True
        stream = self._connection.stream
        stream.max_write_buffer_size = None  # nothing more is written
        if not self.close_after:
            self._connection.finish()
        elif self._chunked and not stream.closed():
            stream.write(b"0\r\n\r\n")
        self._let_go()

    def break_off(self) -> None:
        """End an answer that can't be completed: close the connection after what was written."""
        self.ended = self.close_after = True
        self._let_go()

    def read_all(self) -> None:
        """No more of the request will be read; its answer has ended."""
        if self.reads_on:
            self.reads_on = False
            self._let_go()

    def abandon(self) -> None:
        """Write nothing more: nobody reads it."""
        self.ended = True

    # ------------------------------------------------------------------------------------ inside

    def _send_later(self, data: bytes) -> None:
        """Send the data that the socket had no room for, and what follows it."""
        stream = self._connection.stream
        if stream.socket is not None:  # else it has just been closed
            stream.max_write_buffer_size = MAX_UNSENT_BYTES + len(data)  # a piece alone is never too long
            stream.write(data)
            self._behind = stream.writing()

    def _send_head(self, data: bytes, last: bool) -> None:
        headers = self._base_headers.now(self._head.headers.get("origin"))
        for name, value in self.headers.items():
            if name.lower() not in SERVERS_OWN:
                self._add_header(headers, name, value)
        headers[self._base_headers.request_id] = self._request_id
        self._bodiless = self._head.method == "HEAD" or self.status in BODILESS
        if last and self.status not in BODILESS:
            headers["Content-Length"] = str(len(data))
        elif not last:
            self._chunked = self._head.version == "HTTP/1.1" and not self._bodiless
            headers.setdefault("Cache-Control", "no-cache")
            headers.setdefault("X-Accel-Buffering", "no")  # else nginx passes nothing on before it has some KiB
            if self._head.version != "HTTP/1.1":  # no chunked encoding: closing the connection ends the answer
                self.close_after = True
        if self._draining.begun:
            self.close_after = True
        if self.close_after:
            headers["Connection"] = "close"
            self._head.received.pop("Connection", None)  # or Tornado answers an HTTP/1.0 client that it stays open
        self.begun = True
        start_line = httputil.ResponseStartLine("HTTP/1.1", self.status, phrase_of(self.status))
        self._connection.write_headers(start_line, headers, b"" if self._bodiless else data)
        self._behind = self._connection.stream.writing()

    def _add_header(self, headers: httputil.HTTPHeaders, name: str, value: str) -> None:
        if HEADER_NAME.fullmatch(name) and HEADER_VALUE.fullmatch(value):
            if name.lower() == "vary":
                headers.add(name, value)  # beside our own
            else:
                headers[name] = value
        else:
            log.warning("the response header %r can't be sent with its value: left out", name, extra=self.log_extra)

    def _report_when_taken(self) -> None:
        """Call `on_taken` once the kernel has taken everything written so far."""
        size, self._untold_bytes = self._untold_bytes, 0
        if not self._connection.stream.writing():
            self._on_taken(size)
            return

        def report(sent: asyncio.Future[None]) -> None:
            if not (self.ended or sent.cancelled() or sent.exception() is not None):
                self._on_taken(size)

        self._connection.stream.write(b"").add_done_callback(report)

    def _let_go(self) -> None:
        """Wait at shutdown for what is unsent, and close the connection after it if required."""
        stream = stream_of(self._connection)
        if not stream.closed() and (self.close_after or stream.writing()):
            sent = stream.write(b"")
            self._draining.sending(sent)
            if self.close_after and not self.reads_on:
                sent.add_done_callback(lambda _sent: stream.close_gently())
