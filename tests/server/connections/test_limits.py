"""How many connections there may be, and which of them go first: counted, and at a server."""

from __future__ import annotations

import asyncio

import pytest

from djl_python.server.connections.limits import Connections
from tests.server.harness import Site, running

GET = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Open:
    """A connection that is counted."""

    def __init__(self, connections: Connections, client: str) -> None:
        self.client = client
        self.is_closed = False
        self._connections = connections
        connections.opened(self)

    def close(self) -> None:
        self.is_closed = True
        self._connections.closed(self)


def test_the_one_that_has_waited_longest_makes_room() -> None:
    counted = Connections(3)
    first, second, third = (Open(counted, "127.0.0.1") for _ in range(3))
    for one in (first, second, third):
        counted.awaits_request(one)
    counted.awaits_request(first)  # its head begins
    counted.has_request(second)
    assert (counted.refusal("127.0.0.1"), third.is_closed, counted.count) == ("", True, 2)
    Open(counted, "127.0.0.1")
    assert (counted.refusal("127.0.0.1"), first.is_closed) == ("", True)
    Open(counted, "127.0.0.1")
    assert "there are 3 connections already (max_connections)" in counted.refusal("127.0.0.1")
    second.close()
    assert counted.refusal("127.0.0.1") == ""


@pytest.mark.parametrize(
    ("clients", "newcomer", "welcome"),
    [
        (["10.0.0.1"] * 2, "10.0.0.1", False),
        (["10.0.0.1"] * 2, "10.0.0.2", True),
        (["::ffff:10.0.0.1", "10.0.0.1"], "10.0.0.1", False),
        (["2001:db8::1", "2001:db8::2"], "2001:db8::3", False),
        (["2001:db8::1", "2001:db8::2"], "2001:db8:0:1::3", True),
        (["fe80::1%eth0", "fe80::2%eth0"], "fe80::3%eth0", False),
        (["127.0.0.1"] * 9, "127.0.0.1", True),
        (["::1"] * 9, "::1", True),
        (["unix"] * 9, "unix", True),
    ],
)
def test_connections_of_an_address(clients: list[str], newcomer: str, welcome: bool) -> None:
    counted = Connections(None, 2)
    open_ones = [Open(counted, client) for client in clients]
    assert (counted.refusal(newcomer) == "") is welcome
    for one in open_ones:
        one.close()
    assert (counted.refusal(newcomer), counted.count) == ("", 0)


async def served(site: Site, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(GET)
    return await asyncio.wait_for(reader.readline(), 5)


async def test_a_full_server_closes_idle_connections_and_answers_503_where_there_are_none() -> None:
    async with running(max_connections=3) as site:
        await site.client.aclose()
        async with site.connect() as idle, site.connect() as busy, site.connect() as other, site.connect() as new:
            assert await asyncio.wait_for(idle[0].read(), 5) == b""
            for _, writer in (busy, other, new):
                writer.write(
                    b'POST /invocations HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\n{"do": "hang"}'
                )
            while site.model.pool.busy < 3:
                await asyncio.sleep(0.01)
            async with site.connect() as (reader, writer):
                refusal = await asyncio.wait_for(reader.read(), 5)
            assert refusal.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After: " in refusal.replace(b"retry-after", b"Retry-After") and b"max_connections" in refusal
            busy[1].close()
            while site.model.pool.busy == 3:
                await asyncio.sleep(0.01)
            async with site.connect() as (reader, writer):
                assert await served(site, reader, writer) == b"HTTP/1.1 200 OK\r\n"


async def test_a_head_that_does_not_come_to_its_end_is_no_reason_to_wait() -> None:
    async with running(header_timeout_s=0.3) as site, site.connect() as (reader, writer):
        assert await served(site, reader, writer) == b"HTTP/1.1 200 OK\r\n"
        await reader.readuntil(b"\n}\n")
        await asyncio.sleep(0.5)  # between requests, idle_timeout counts
        assert await served(site, reader, writer) == b"HTTP/1.1 200 OK\r\n"
        await reader.readuntil(b"\n}\n")
        ended = asyncio.create_task(reader.read())
        writer.write(b"GET /ping HTTP/1.1\r\n")
        while not ended.done():  # slowly, but without a pause
            writer.write(b"X: y\r\n")
            await asyncio.sleep(0.05)
        assert ended.result() == b""


async def test_the_first_head_is_awaited_from_the_beginning_of_its_connection() -> None:
    async with running(header_timeout_s=0.2) as site, site.connect() as (reader, _):
        assert await asyncio.wait_for(reader.read(), 5) == b""
