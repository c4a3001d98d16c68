"""An HTTP/1.1 client that costs next to nothing while a stream runs. Runs on the load generator's event loop.

The client shares the machine with the server it measures. So arriving bytes are only timestamped and kept; chunked
encoding, events and JSON are decoded when the measurement is over (`HttpReply.pieces`).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast
from urllib.parse import SplitResult, urlsplit

_HEAD_END: Final = b"\r\n\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"

Framing = Literal["chunked", "length", "close"]
#: (seconds on the clock of time.perf_counter, the bytes that had arrived then)
Read = tuple[float, bytes]


@dataclass(frozen=True)
class Endpoint:
    """Where requests go."""

    host: str
    port: int
    tls: bool
    authority: str
    path: str

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Parse an http or https URL; anything else raises ValueError."""
        parts: SplitResult = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not a URL; expected http://host:port or https://host:port")
        tls = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if tls else 80), tls, parts.netloc, parts.path.rstrip("/"))


@dataclass
class HttpReply:
    """An answer as it arrived: the status, and the body in reads, framed as it came over the wire."""

    status: int = 0
    framing: Framing = "close"
    reads: list[Read] = field(default_factory=list)

    def pieces(self) -> list[Read]:
        """The body without its framing, each piece with the time at which it was complete.

        Raises:
            ValueError: a chunked body is incomplete or malformed.
        """
        return dechunk(self.reads) if self.framing == "chunked" else self.reads


def dechunk(reads: list[Read]) -> list[Read]:
    """Decode chunked encoding; see `HttpReply.pieces`."""
    pieces: list[Read] = []
    rest = b""
    for time_s, data in reads:
        rest += data
        while (line := rest.find(b"\r\n")) >= 0:
            size = int(rest[:line].partition(b";")[0], 16)
            end = line + 2 + size
            if len(rest) < end + 2:
                break
            if not size:
                return pieces
            pieces.append((time_s, rest[line + 2 : end]))
            rest = rest[end + 2 :]
    raise ValueError("the answer was cut: its last chunk is missing")


class BenchConnection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reply = HttpReply()
        self._head = b""
        self._in_head = True
        self._left = 0
        self._tail = b""
        self._done: asyncio.Future[HttpReply] | None = None
        self.open = False

    @classmethod
    async def connect(cls, endpoint: Endpoint) -> BenchConnection:
        """Open a connection. Raises OSError."""
        tls = ssl.create_default_context() if endpoint.tls else None
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, endpoint.host, endpoint.port, ssl=tls)
        return connection

    async def post(self, request: bytes) -> HttpReply:
        """Send a whole request and wait for the whole answer.

        Raises:
            ConnectionError: the connection ended before the answer did.
        """
        assert self._transport is not None
        self._reply, self._head, self._in_head, self._tail = HttpReply(), b"", True, b""
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._done

    def close(self) -> None:
        """Close the connection at once, even within an answer."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.open = cast(asyncio.Transport, transport), True

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter()
        if self._in_head:
            self._head += data
            head, separator, data = self._head.partition(_HEAD_END)
            if not separator:
                return
            self._in_head = False
            try:
                self._read_head(head)
            except ValueError as exc:
                self._end(ConnectionError(f"not an HTTP answer: {exc}"))
                return
        if data:
            self._reply.reads.append((now_s, data))
        if self._complete(data):
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if not self._in_head and self._reply.framing == "close" and exc is None:
            self._end(None)
        else:
            self._end(ConnectionError(f"the connection ended within the answer: {exc or 'closed by the server'}"))

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        self._reply.status = int(first.split(" ", 2)[1])
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if "chunked" in headers.get("transfer-encoding", "").lower():
            self._reply.framing = "chunked"
        elif "content-length" in headers:
            self._reply.framing, self._left = "length", int(headers["content-length"])
        if headers.get("connection", "").lower() == "close":
            self.open = False

    def _complete(self, data: bytes) -> bool:
        if self._reply.framing == "length":
            self._left -= len(data)
            return self._left <= 0
        if self._reply.framing == "close":
            return False
        self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
        if self._tail != _LAST_CHUNK:
            return False
        try:  # text may also end like a last chunk, so check by decoding; only now is that worth its time
            dechunk(self._reply.reads)
        except ValueError:
            return False
        return True

    def _end(self, error: ConnectionError | None) -> None:
        if self._done is None or self._done.done():
            return
        if error is None:
            self._done.set_result(self._reply)
        else:
            self._done.set_exception(error)


def request_bytes(endpoint: Endpoint, path: str, body: bytes, *, headers: Mapping[str, str], keep_alive: bool) -> bytes:
    """The bytes of a POST request with a JSON body."""
    lines = [
        f"POST {endpoint.path}{path} HTTP/1.1",
        f"Host: {endpoint.authority}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"Connection: {'keep-alive' if keep_alive else 'close'}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode("latin-1") + _HEAD_END + body
