"""Connections whose clients keep them waiting. What waits for what: test_bodies."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import weakref
from collections.abc import AsyncIterator

import pytest
from tornado.iostream import StreamClosedError

from djl_python.server.connections.stream import ClientStream


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


async def test_nodelay_stays_on_whatever_tornado_asks() -> None:
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
