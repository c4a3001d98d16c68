"""The client against a server of raw bytes: how bodies are framed, reused connections, answers that are cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from djl_python.bench.http import BenchConnection, Endpoint, dechunk, request_bytes

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Server:
    """Answers every request with `writes`, one after the other, and closes where told to."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.close = False
        self.connections = 0
        self.requests: list[bytes] = []
        self.endpoint = Endpoint("", 0, False, "", "")

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                for data in self.writes:
                    writer.write(data)
                    await writer.drain()
                    await asyncio.sleep(0.005)  # so that the client reads it by itself
                if self.close:
                    break
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    async with await asyncio.start_server(server.answer, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        server.endpoint = Endpoint.parse(f"http://127.0.0.1:{port}/base/")
        yield server


async def body(server: Server) -> bytes:
    connection = await BenchConnection.connect(server.endpoint)
    try:
        reply = await asyncio.wait_for(connection.post(request(server)), 5)
    finally:
        connection.close()
    return b"".join(data for _, data in reply.pieces())


def request(server: Server) -> bytes:
    return request_bytes(server.endpoint, "/v1", b"{}", headers={"X-Key": "secret"}, keep_alive=True)


@pytest.mark.parametrize(
    ("writes", "close"),
    [
        ([CHUNKED, b"3\r\nabc\r\n", b"2\r\nde\r\n", b"0\r\n\r\n"], False),
        ([CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"], False),
        ([CHUNKED[:20], CHUNKED[20:] + b"3\r\na", b"bc\r\n2;x=y\r", b"\nde\r\n0", b"\r\n\r\n"], False),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab", b"cde"], False),
        ([b"HTTP/1.1 200 OK\r\n\r\nab", b"cde"], True),
    ],
    ids=["chunks", "one read", "split anywhere", "length", "until the end"],
)
async def test_bodies_however_framed_and_split(server: Server, writes: list[bytes], close: bool) -> None:
    server.writes, server.close = writes, close
    assert await body(server) == b"abcde"
    assert server.requests == [
        b"POST /base/v1 HTTP/1.1\r\nHost: " + server.endpoint.authority.encode() + b"\r\n"
        b"Content-Type: application/json\r\nContent-Length: 2\r\nConnection: keep-alive\r\nX-Key: secret\r\n\r\n{}"
    ]


async def test_text_that_looks_like_the_end_is_text(server: Server) -> None:
    server.writes = [CHUNKED, b"5\r\n0\r\n\r\n", b"\r\n1\r\n!\r\n", b"0\r\n\r\n"]
    assert await body(server) == b"0\r\n\r\n!"


@pytest.mark.parametrize(
    "writes",
    [[CHUNKED, b"3\r\nabc\r\n"], [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"], [b"HTTP/1.1 200"], []],
    ids=["chunks", "length", "head", "nothing"],
)
async def test_an_answer_that_is_cut_is_an_error(server: Server, writes: list[bytes]) -> None:
    server.writes, server.close = writes, True
    with pytest.raises(ConnectionError, match="ended within the answer"):
        await body(server)


async def test_an_answer_that_is_not_http_is_an_error(server: Server) -> None:
    server.writes = [b"SSH-2.0 abc\r\n\r\n"]
    with pytest.raises(ConnectionError, match="not an HTTP answer"):
        await body(server)


async def test_a_connection_is_used_again_unless_the_server_closes_it(server: Server) -> None:
    server.writes = [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab"]
    connection = await BenchConnection.connect(server.endpoint)
    for _ in range(3):
        assert (await connection.post(request(server))).status == 200
    assert (server.connections, connection.open) == (1, True)
    server.writes = [b"HTTP/1.1 503 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"]
    assert (await connection.post(request(server))).status == 503
    assert not connection.open
    connection.close()


def test_pieces_are_stamped_when_complete() -> None:
    assert dechunk([(1.0, b"2\r\na"), (2.0, b"b\r\n1\r\nc\r\n"), (3.0, b"0\r\n\r\n")]) == [(2.0, b"ab"), (2.0, b"c")]
    with pytest.raises(ValueError, match="last chunk is missing"):
        dechunk([(1.0, b"2\r\nab\r\n")])


def test_endpoints() -> None:
    assert Endpoint.parse("https://host/v") == Endpoint("host", 443, True, "host", "/v")
    for url in ("host:80", "ftp://host", "http://"):
        with pytest.raises(ValueError, match="expected http"):
            Endpoint.parse(url)
