"""Connections whose clients keep them waiting. What waits for what: test_bodies."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import socket
import weakref
from collections.abc import AsyncIterator, Iterator

import pytest
from tornado.httputil import HTTPServerConnectionDelegate
from tornado.iostream import IOStream, StreamClosedError

from djl_python.server.http import connections
from djl_python.server.http.connections import ClientStream, HttpServer
from tests.server.harness import until


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[ClientStream, socket.socket]]:
    """A connection of TCP: the server's side, and the client's."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
    ):
        stream = ClientStream(*listening.accept())
        try:
            yield stream, client
        finally:
            stream.close()


async def closed_after(stream: ClientStream) -> float:
    """Seconds until the stream is closed."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    with pytest.raises(StreamClosedError):
        await asyncio.wait_for(stream.read_bytes(1), 5)
    return loop.time() - began_at


async def test_a_client_that_is_awaited_too_long_is_left() -> None:
    async with connected() as (stream, client):
        stream.await_client(0.1)
        assert 0.09 < await closed_after(stream) < 2
        assert client.recv(1) == b""


async def test_the_last_limit_counts_whether_it_is_earlier_or_later_than_the_one_before() -> None:
    for before_s, after_s in ((60.0, 0.1), (0.05, 0.3)):
        async with connected() as (stream, _):
            stream.await_client(before_s)
            stream.await_client(after_s)
            assert after_s - 0.01 < await closed_after(stream) < after_s + 2


async def test_a_connection_that_waits_no_more_stays_until_its_client_is_awaited_again() -> None:
    async with connected() as (stream, _):
        stream.await_client(0.05)
        stream.wait_no_more()
        await asyncio.sleep(0.15)
        assert not stream.closed()
        stream.await_client(0.05)
        await closed_after(stream)


async def test_what_is_written_is_sent_at_once_whatever_tornado_asks() -> None:
    async with connected() as (stream, _):
        for asked in (True, False):
            stream.set_nodelay(asked)
            assert stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_stream_knows_its_client() -> None:
    async with connected() as (stream, _):
        assert stream.client == "127.0.0.1"
    left, right = socket.socketpair(socket.AF_UNIX)
    with right:
        stream = ClientStream(left, "")
        assert stream.client == "unix"
        stream.close()


@pytest.mark.parametrize("at_most_s", [0.05, 30])  # the timer rings before the connection is closed, or not
async def test_a_closed_connection_awaits_nobody(at_most_s: float) -> None:
    """Tornado asks for the next request of a connection that has been closed."""
    async with connected() as (stream, _):
        stream.await_client(60)
        stream.await_client(at_most_s)
        stream.wait_no_more()
        await asyncio.sleep(0.1)
        stream.close()
        gone = weakref.ref(stream)
        stream.await_client(60)
        del stream
    gc.collect()
    assert gone() is None


class Failing(socket.socket):
    """A listening socket that fails with each of these errors before it accepts a connection."""

    errors: list[int]

    def accept(self) -> tuple[socket.socket, object]:
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, os.strerror(number))
        return super().accept()


@contextlib.contextmanager
def listening(*errors: int) -> Iterator[Failing]:
    with Failing() as sock:
        sock.errors = list(errors)
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        sock.setblocking(False)
        yield sock


@pytest.mark.parametrize(
    ("number", "waits_s", "logged"),
    [
        (errno.EMFILE, 0.35, ["no connection can be accepted: Too many open files; the next try is in 0.2 s"] * 2),
        (errno.ECONNABORTED, 0, []),
    ],
)
async def test_a_connection_that_can_not_be_accepted_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int, waits_s: float, logged: list[str]
) -> None:
    monkeypatch.setattr(connections, "EXHAUSTED_S", 0.2)
    accepted = asyncio.Event()
    server = HttpServer(HTTPServerConnectionDelegate())

    def handle_stream(stream: IOStream, address: object) -> None:
        stream.close()
        accepted.set()

    monkeypatch.setattr(server, "handle_stream", handle_stream)
    with listening(number, number) as sock, socket.socket() as client:
        server.add_sockets([sock])
        begun = asyncio.get_running_loop().time()
        client.connect(sock.getsockname())
        await asyncio.wait_for(accepted.wait(), 10)
        assert asyncio.get_running_loop().time() - begun > waits_s
        server.stop()
    assert caplog.messages == logged


async def test_a_server_may_stop_while_it_waits_for_descriptors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "EXHAUSTED_S", 0.05)
    server = HttpServer(HTTPServerConnectionDelegate())
    with listening(errno.EMFILE) as sock, socket.socket() as client:
        address = sock.getsockname()
        server.add_sockets([sock])
        client.connect(address)
        await until(lambda: bool(caplog.messages))
        server.stop()
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
    assert len(caplog.messages) == 1
