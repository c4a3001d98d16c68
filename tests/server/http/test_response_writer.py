"""Answers on real connections, written piece by piece."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tornado import httputil
from tornado.http1connection import HTTP1Connection
from tornado.iostream import StreamBufferFullError

from djl_python.config import Address, ServerConfig
from djl_python.server.http.base_headers import BaseHeaders
from djl_python.server.http.draining import Draining
from djl_python.server.http.http1 import Delegate
from djl_python.server.http.listening import SocketListener
from djl_python.server.http.requests.request_head import RequestHead
from djl_python.server.http.response_writer import MAX_UNSENT_BYTES, TAKEN_EVERY_BYTES, ResponseWriter
from djl_python.server.http.server import HttpServer
from tests.server.harness import until

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass
class Asked:
    """A request that has come in, and the answer that the test is to write."""

    answer: ResponseWriter
    connection: HTTP1Connection
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    taken: list[int] = field(default_factory=list)

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    def close(self) -> None:
        """Find out that the client has gone."""
        self.connection.stream.close()


class Desk(httputil.HTTPServerConnectionDelegate):
    """Leaves requests to the test."""

    def __init__(self) -> None:
        self.base_headers, self.draining = BaseHeaders(ServerConfig()), Draining()
        self.requests: asyncio.Queue[tuple[HTTP1Connection, RequestHead]] = asyncio.Queue()

    def start_request(self, server_conn: object, request_conn: httputil.HTTPConnection) -> httputil.HTTPMessageDelegate:
        assert isinstance(request_conn, HTTP1Connection)
        requests, connection = self.requests, request_conn

        class Complete(Delegate):
            def headers_received(self, start_line: Any, headers: httputil.HTTPHeaders) -> None:
                self.head = RequestHead(start_line, headers)

            def finish(self) -> None:
                requests.put_nowait((connection, self.head))

        return Complete()


@contextlib.asynccontextmanager
async def asked(request: bytes = GET) -> AsyncIterator[Asked]:
    desk, listener = Desk(), SocketListener(Address("127.0.0.1", 0))
    http = HttpServer(desk)
    listener.listen()
    http.add_sockets(listener.sockets)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.address.port)
    try:
        writer.write(request)
        connection, received = await asyncio.wait_for(desk.requests.get(), 10)
        taken: list[int] = []
        yield Asked(
            ResponseWriter(desk.base_headers, desk.draining, connection, received, "r", taken.append),
            connection,
            reader,
            writer,
            taken,
        )
    finally:
        writer.close()
        http.stop()
        listener.close()
        await http.close_all_connections()


async def test_an_answer_in_one_piece_has_a_length() -> None:
    async with asked() as asks:
        asks.answer.start(200, {"x-mine": "yes"})
        asks.answer.write(b"whole", True)
        asks.answer.finish()
        head = await asks.head()
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        for line in (b"X-Mine: yes", b"X-Request-Id: r", b"Content-Length: 5"):
            assert line in head
        assert await asks.reader.readexactly(5) == b"whole"


async def test_a_piece_leaves_when_it_is_written() -> None:
    async with asked() as asks:
        asks.answer.start(200, {})
        asks.answer.write(b"one", False)
        assert b"Transfer-Encoding: chunked" in await asks.head()
        for piece in (b"two", b"three"):
            assert asks.answer.begun and not asks.answer.ended
            await asks.reader.readuntil(b"\r\n")
            await asks.reader.readuntil(b"\r\n")
            asks.answer.write(piece, piece == b"three")
        asks.answer.finish()
        assert await asks.reader.readuntil(b"0\r\n\r\n") == b"5\r\nthree\r\n0\r\n\r\n"


@pytest.mark.parametrize("close_after", [False, True])
@pytest.mark.parametrize("end", ["finish", "break_off", "abandon"])
async def test_a_piece_for_a_client_that_has_just_left_is_no_error(end: str, close_after: bool) -> None:
    """It comes in the turn of the loop in which the connection is found closed, before anybody is told."""
    async with asked() as asks:
        asks.answer.close_after = close_after
        asks.answer.start(200, {})
        asks.answer.write(b"one", False)
        asks.close()
        asks.answer.write(b"two", end == "finish")
        getattr(asks.answer, end)()
        assert asks.answer.ended


async def test_pieces_for_a_client_whose_connection_breaks_are_no_error() -> None:
    """The kernel says so before Tornado does."""
    async with asked() as asks:
        asks.answer.start(200, {})
        asks.answer.write(b"one", False)
        asks.writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        for piece in (b"two", b"three", b"four"):
            asks.answer.write(piece, False)
        asks.answer.abandon()


@pytest.mark.parametrize(("method", "status"), [(b"HEAD", 200), (b"GET", 204), (b"GET", 304)])
async def test_an_answer_without_a_body_has_none_whatever_is_written(method: bytes, status: int) -> None:
    async with asked(method + b" / HTTP/1.1\r\nHost: localhost\r\n\r\n") as asks:
        asks.answer.close_after = True
        asks.answer.start(status, {})
        for piece in (b"one", b"two", b""):
            asks.answer.write(piece, piece == b"")
        asks.answer.finish()
        head = await asks.head()
        assert head.startswith(b"HTTP/1.1 %d " % status) and b"Transfer-Encoding" not in head
        assert await asks.reader.read() == b""


async def test_a_stream_may_be_its_connections_last_answer() -> None:
    async with asked() as asks:
        asks.answer.close_after = True
        asks.answer.start(200, {})
        for piece in (b"one", b"", b"two"):
            asks.answer.write(piece, piece == b"two")
        asks.answer.finish()
        assert b"Connection: close\r\n" in await asks.head()
        assert await asks.reader.read() == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


async def test_an_answer_ends_also_where_its_client_is_behind() -> None:
    size = 2 * MAX_UNSENT_BYTES
    async with asked() as asks:
        asks.answer.start(200, {})
        for piece in (bytes(size), b""):
            asks.answer.write(piece, piece == b"")
        asks.answer.finish()
        await asks.head()
        framing = len(b"%x\r\n\r\n0\r\n\r\n" % size)
        assert (await asks.reader.readexactly(size + framing)).endswith(b"0\r\n\r\n")
        assert not asks.connection.stream.closed()


async def test_taken_bytes_are_reported_in_large_steps() -> None:
    async with asked() as asks:
        reading = asyncio.create_task(asks.reader.read())
        asks.answer.start(200, {})
        for _ in range(9):
            asks.answer.write(bytes(TAKEN_EVERY_BYTES // 4), False)
        await until(lambda: len(asks.taken) == 2)
        assert asks.taken == [TAKEN_EVERY_BYTES] * 2
        asks.answer.break_off()
        await reading


async def test_bytes_taken_late_are_reported_late() -> None:
    async with asked() as asks:
        asks.answer.start(200, {})
        for _ in range(2):
            asks.answer.write(bytes(MAX_UNSENT_BYTES), False)
        assert sum(asks.taken) < 2 * MAX_UNSENT_BYTES
        reading = asyncio.create_task(asks.reader.read())
        await until(lambda: sum(asks.taken) == 2 * MAX_UNSENT_BYTES)
        asks.answer.break_off()
        await reading


async def test_a_client_that_takes_nothing_is_too_slow() -> None:
    async with asked() as asks:
        asks.answer.start(200, {})
        with pytest.raises(StreamBufferFullError):
            for _ in range(64):
                asks.answer.write(bytes(MAX_UNSENT_BYTES // 8), False)
        asks.answer.abandon()
        assert sum(asks.taken) < 64 * MAX_UNSENT_BYTES // 8


async def test_an_answer_that_is_broken_off_has_no_end() -> None:
    async with asked() as asks:
        asks.answer.start(200, {})
        asks.answer.write(b"one", False)
        asks.answer.break_off()
        await asks.head()
        assert await asks.reader.read() == b"3\r\none\r\n"


async def test_a_header_that_can_not_be_sent_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    async with asked() as asks:
        asks.answer.log_extra = {"model": "m"}
        asks.answer.start(200, {"good": "1", "bad": "a\r\nb: c", "not a name": "1"})
        asks.answer.write(b"", True)
        asks.answer.finish()
        head = await asks.head()
        assert b"Good: 1" in head and b"b: c" not in head
    assert [record.args for record in caplog.records] == [("bad",), ("not a name",)]
    assert {vars(record)["model"] for record in caplog.records} == {"m"}


@pytest.mark.parametrize("begun", [False, True])
async def test_pieces_stay_in_order_when_a_client_falls_behind_and_catches_up(begun: bool) -> None:
    async with asked(b"GET / HTTP/1.0\r\n\r\n") as asks:
        asks.writer.transport.pause_reading()  # type: ignore[attr-defined]
        with socket.socket(fileno=os.dup(asks.writer.get_extra_info("socket").fileno())) as client:
            asks.answer.start(200, {})
            if begun:
                asks.answer.write(b"", False)
            long = b"a" * (MAX_UNSENT_BYTES // 2)
            asks.answer.write(long, False)
            received = client.recv(1 << 20)  # there is room again, and the loop has not seen it yet
            asks.answer.write(b"b", False)
            while not received.endswith(b"b"):
                await asyncio.sleep(0)
                with contextlib.suppress(BlockingIOError):
                    received += client.recv(1 << 20)
            asks.answer.write(b"c", True)
            assert client.recv(2) == b"c", "at once: nothing waits any more"
            asks.answer.finish()
        assert received.partition(b"\r\n\r\n")[2] == long + b"b"


@pytest.mark.parametrize(
    "first_lines",
    [b"GET / HTTP/1.0\r\n", b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n", b"GET / HTTP/1.2\r\nHost: localhost\r\n"],
)
async def test_an_odd_clients_stream_is_sent_to_its_end_and_ends_its_connection(first_lines: bytes) -> None:
    """Only HTTP/1.1 has chunks: else the end of the connection is the answer's, also where the kernel lags behind."""
    size = MAX_UNSENT_BYTES // 2
    async with asked(first_lines + b"\r\n") as asks:
        asks.answer.start(200, {})
        for piece in (b"a" * size, b"b" * size):
            asks.answer.write(piece, piece[:1] == b"b")
        asks.answer.finish()
        head = await asks.head()
        assert b"Connection: close\r\n" in head and b"Transfer-Encoding" not in head
        assert await asyncio.wait_for(asks.reader.read(), 10) == b"a" * size + b"b" * size


async def test_an_old_client_is_told_that_its_connection_ends() -> None:
    async with asked(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n") as asks:
        asks.answer.close_after = True
        asks.answer.start(200, {})
        asks.answer.write(b"whole", True)
        asks.answer.finish()
        head = await asks.head()
        assert b"Connection: close\r\n" in head and b"Keep-Alive" not in head
        assert await asks.reader.read() == b"whole"
