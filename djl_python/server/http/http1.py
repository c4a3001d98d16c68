"""HTTP/1.1 where RFC 9112 asks for more than Tornado's parser does. Runs in the front end's event loop.

Chunks may have extensions, and trailers may follow the last one: both are read and ignored. A request that can't be
    parsed is refused like any other, in its dialect's shape where its path is known. It is the last of its connection,
    because the beginning of the next one is unknown.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from typing import Final, NoReturn

from tornado import httputil
from tornado.http1connection import HTTP1Connection, HTTP1ServerConnection
from tornado.iostream import StreamClosedError

from ...core.errors import HeadTooLongError, PayloadError, ServingError, TooLargeError
from ...formats.http_rules import HEADER_VALUE, TOKEN

#: A chunk's size line (RFC 9112, 7.1): no bare CR or LF, which others on the way might take for the line's end.
_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_TRAILER: Final = re.compile(f"{TOKEN}:{HEADER_VALUE.pattern}\\r\\n".encode())
_MAX_LINE: Final = 4096  # bytes: of such a line, and of a trailer
_MAX_EXTRA: Final = 16_384  # bytes: of all extensions of a body, and of all its trailers
#: Others have their turn after so many bytes of a body, a chunk counting as some more.
_TURN_BYTES: Final = 256 << 10
_CHUNK_BYTES: Final = 1 << 10


class Delegate(httputil.HTTPMessageDelegate):
    """Receives requests, and is told of malformed ones."""

    def malformed(
        self, error: ServingError, start_line: httputil.RequestStartLine, headers: httputil.HTTPHeaders
    ) -> None:
        """Refuse a request with an answer; the arguments are all that is known if `headers_received` was not called."""
        raise NotImplementedError


class _Refused(Exception):
    """The request has been refused with an answer; nothing more is read."""


class Connection(HTTP1Connection):
    """One request and its answer."""

    _delegate: Delegate

    async def _read_message(self, delegate: httputil.HTTPMessageDelegate) -> bool:
        assert isinstance(delegate, Delegate)
        self._delegate = delegate
        try:
            return await super()._read_message(delegate)
        except _Refused:
            return False

    def _parse_headers(self, data: bytes) -> tuple[str, httputil.HTTPHeaders]:
        if len(data) > self.params.max_header_size:
            self._refuse(HeadTooLongError("the request's path and headers are too long"), data)
        try:
            start_line, headers = super()._parse_headers(data)
            httputil.parse_request_start_line(start_line)
        except httputil.HTTPInputError as error:
            self._refuse(_no_http(error), data)
        return start_line, headers

    def _can_keep_alive(self, start_line: httputil.RequestStartLine, headers: httputil.HTTPHeaders) -> bool:
        if start_line.version != "HTTP/1.1" and "Transfer-Encoding" in headers:  # a proxy of 1.0 would not know it
            self._refuse(_no_http("Transfer-Encoding in a request of HTTP/1.0"))
        try:
            return super()._can_keep_alive(start_line, headers)
        except httputil.HTTPInputError as error:
            self._refuse(_no_http(error))

    def _read_body(
        self, code: int, headers: httputil.HTTPHeaders, delegate: httputil.HTTPMessageDelegate
    ) -> Awaitable[None] | None:
        try:
            return super()._read_body(code, headers, delegate)
        except httputil.HTTPInputError as error:
            self._refuse(_no_http(error))

    async def _read_chunked_body(self, delegate: httputil.HTTPMessageDelegate) -> None:
        """Read chunks; the data of small ones is passed on together, but never kept while the client is awaited."""
        data = bytearray()
        size = extra = work = 0
        while True:
            line = await self._next(self.stream.read_until(b"\r\n", max_bytes=_MAX_LINE), data)
            if (match := _SIZE_LINE.fullmatch(line)) is None:
                self._refuse(_no_http("a chunk does not begin with its size"))
            extra += len(line) - len(match[1]) - len(b"\r\n")
            if extra > _MAX_EXTRA:
                self._refuse(_no_http(f"its chunks have more than {_MAX_EXTRA} bytes of extensions"))
            left = int(match[1], 16)
            if not left:
                break
            size += left
            if size > self._max_body_size:
                self._refuse(TooLargeError(f"the body is larger than {self._max_body_size} bytes"))
            work += left + _CHUNK_BYTES
            while left:
                most = min(left, self.params.chunk_size)
                piece = await self._next(self.stream.read_bytes(most, partial=True), data)
                left -= len(piece)
                data += piece
                if len(data) >= self.params.chunk_size:
                    await self._pass_on(data)
            if await self._next(self.stream.read_bytes(2), data) != b"\r\n":
                self._refuse(_no_http("a chunk is longer than its size"))
            if work >= _TURN_BYTES:
                work = 0
                await asyncio.sleep(0)
        await self._skip_trailers(data)
        await self._pass_on(data)

    async def _skip_trailers(self, data: bytearray) -> None:
        """Read the trailers. They are never taken for headers: they might say who the client is (RFC 9110, 6.5.1)."""
        size = 0
        while True:
            line = await self._next(self.stream.read_until(b"\r\n", max_bytes=_MAX_LINE), data)
            if line == b"\r\n":
                return
            size += len(line)
            if size > _MAX_EXTRA or not _TRAILER.fullmatch(line):
                self._refuse(_no_http(f"expected trailers of at most {_MAX_EXTRA} bytes behind the last chunk"))

    async def _next(self, reading: Awaitable[bytes], data: bytearray) -> bytes:
        """The next read; `data` is passed on first if the client has to send more."""
        if data and not asyncio.ensure_future(reading).done():
            await self._pass_on(data)
        return await reading

    async def _pass_on(self, data: bytearray) -> None:
        passed = bytes(data)
        data.clear()
        if passed and not self._write_finished and (taken := self._delegate.data_received(passed)) is not None:
            await taken

    def _refuse(self, error: ServingError, head: bytes = b"") -> NoReturn:
        """Answer the request, `head` of which has come if it has none yet, and read no more of it."""
        start_line, headers = self._request_start_line, self._request_headers
        if start_line is None or headers is None:
            start_line, headers = _known(head), httputil.HTTPHeaders()
            self._request_start_line, self._request_headers = start_line, headers
        self._delegate.malformed(error, start_line, headers)
        raise _Refused


class ServerConnection(HTTP1ServerConnection):
    """The requests of a connection, one after the other."""

    async def _server_request_loop(self, delegate: httputil.HTTPServerConnectionDelegate) -> None:
        try:
            while True:
                connection = Connection(self.stream, False, self.params, self.context)
                try:
                    goes_on = await connection.read_response(delegate.start_request(self, connection))
                except StreamClosedError:
                    return
                except BaseException:  # Tornado logs it; no other connection is concerned
                    connection.close()
                    raise
                if not goes_on:
                    return
                await asyncio.sleep(0)
        finally:
            delegate.on_close(self)


def _known(head: bytes) -> httputil.RequestStartLine:
    """The start line of a head that can't be parsed, or one without a path."""
    first = head.lstrip(b"\r\n").split(b"\n", 1)[0].decode("latin1").rstrip("\r")
    try:
        return httputil.parse_request_start_line(first)
    except httputil.HTTPInputError:
        return httputil.RequestStartLine("", "*", "HTTP/1.1")


def _no_http(why: object) -> PayloadError:
    return PayloadError(f"the request is no valid HTTP: {why}")
