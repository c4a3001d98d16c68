"""Connections whose clients keep them waiting. What waits for what: test_bodies."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import socket
import weakref
from collections.abc import AsyncIterator

import pytest
from tornado.httputil import HTTPServerConnectionDelegate
from tornado.iostream import IOStream, StreamClosedError

from djl_python.server import connections
from djl_python.server.connections import ClientStream, HttpServer


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


async def test_a_closed_connection_awaits_nobody() -> None:
    """Tornado asks for the next request of a connection that has been closed."""
    async with connected() as (stream, _):
        stream.await_client(0.05)
        stream.wait_no_more()
        await asyncio.sleep(0.1)  # the timer has rung
        stream.close()
        gone = weakref.ref(stream)
        stream.await_client(60)
        del stream
    gc.collect()
    assert gone() is None


class Exhausted(socket.socket):
    """A listening socket of a process that has no descriptors left until `tries` connections were refused."""

    tries = 2

    def accept(self) -> tuple[socket.socket, object]:
        if self.tries:
            self.tries -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_without_descriptors_a_connection_is_accepted_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "EXHAUSTED_S", 0.2)
    accepted = asyncio.Event()
    server = HttpServer(HTTPServerConnectionDelegate())

    def handle_stream(stream: IOStream, address: object) -> None:
        stream.close()
        accepted.set()

    monkeypatch.setattr(server, "handle_stream", handle_stream)
    with Exhausted() as listening, socket.socket() as client:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        server.add_sockets([listening])
        begun = asyncio.get_running_loop().time()
        client.connect(listening.getsockname())
        await asyncio.wait_for(accepted.wait(), 10)
        assert asyncio.get_running_loop().time() - begun > 0.35
        server.stop()
    assert caplog.messages == ["no connection can be accepted: Too many open files; the next try is in 0.2 s"] * 2
