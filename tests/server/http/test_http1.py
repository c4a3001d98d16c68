"""HTTP/1.1 where Tornado's parser stops: extensions, trailers, and what is no HTTP at all."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from typing import Any

import pytest

from tests.server.harness import running, until

CHUNKED = b"POST /predictions/m HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
PIPELINED = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the next answer, which has a length."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:-1])}
    return int(lines[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


@pytest.mark.parametrize(
    "body",
    [
        b'7;a=1\r\n{"do": \r\n7 ; b="c" ;d\r\n"echo"}\r\n0\r\n\r\n',
        b'E;%s\r\n{"do": "echo"}\r\n000;x\r\n\r\n' % (b"x" * 4000),
        b'E\r\n{"do": "echo"}\r\n0\r\nX-Sum: 1\r\nHost: evil\r\nContent-Length:3\r\n\r\n',
        b'00000e\r\n{"do": "echo"}\r\n0;last\r\nTrailer: \r\n\r\n',
        b"".join(b"1;n=%d\r\n%c\r\n" % (n, char) for n, char in enumerate(b'{"do": "echo"}')) + b"0\r\n\r\n",
    ],
    ids=["extensions", "a long one", "trailers", "zeros", "single bytes"],
)
@pytest.mark.parametrize("in_pieces", [False, True])
async def test_extensions_and_trailers_are_read_and_ignored(body: bytes, in_pieces: bool) -> None:
    async with running() as site, site.connect() as (reader, writer):
        sent = CHUNKED + body + PIPELINED
        for piece in [sent[i : i + 7] for i in range(0, len(sent), 7)] if in_pieces and len(sent) < 999 else [sent]:
            writer.write(piece)
            await writer.drain()
        status, _, said = await answer_of(reader)
        assert status == 200
        got = json.loads(said)
        assert got["headers"]["host"] == "localhost" and "x-sum" not in got["headers"]
        assert (await answer_of(reader))[0] == 200  # the request behind it begins where it begins


MALFORMED = [
    (CHUNKED + b"xyz\r\n", "a chunk does not begin with its size"),
    (CHUNKED + b"1" * 5000, "a chunk does not begin with its size"),
    (CHUNKED + b"-1\r\n", "a chunk does not begin with its size"),
    (CHUNKED + b"0x1\r\n", "a chunk does not begin with its size"),
    (CHUNKED + b"2;a\n\r\nab\r\n", "a chunk does not begin with its size"),
    (CHUNKED + b"2;a\rb\r\nab\r\n", "a chunk does not begin with its size"),
    (CHUNKED + b"2 3\r\nab\r\n", "a chunk does not begin with its size"),
    (CHUNKED + b"2\r\nabc\r\n", "a chunk is longer than its size"),
    (CHUNKED + b"1;%s\r\na\r\n" % (b"x" * 4000) * 5, "more than 16384 bytes of extensions"),
    (CHUNKED + b"0\r\n" + b"A: %s\r\n" % (b"x" * 4000) * 5, "expected trailers of at most 16384 bytes"),
    (CHUNKED + b"0\r\nno trailer\r\n\r\n", "expected trailers"),
    (CHUNKED + b"0\r\nA: b\rc\r\n\r\n", "expected trailers"),
    (CHUNKED.replace(b"chunked", b"chunked\r\nContent-Length: 3"), "Content-Length"),
    (CHUNKED.replace(b"chunked", b"gzip"), "Transfer-Encoding"),
    (CHUNKED.replace(b"1.1", b"1.0").replace(b"chunked", b"gzip"), "Transfer-Encoding"),
    (CHUNKED.replace(b"1.1", b"1.0").replace(b"Host: localhost", b"Connection: keep-alive"), "Transfer-Encoding"),
    (CHUNKED.replace(b"Transfer-Encoding: chunked", b"Content-Length: 1, 2"), "Content-Length"),
    (CHUNKED.replace(b"Transfer-Encoding: chunked", b"Content-Length: -1"), "Content-Length"),
    (CHUNKED.replace(b"Host: localhost", b"no header"), "header"),
    (CHUNKED.replace(b"HTTP/1.1", b"HTTP/3"), "HTTP"),
    (b"\x16\x03\x01\x02\x00 TLS? \r\n\r\n", "HTTP"),
]


@pytest.mark.parametrize(("sent", "why"), MALFORMED, ids=range(len(MALFORMED)))
async def test_a_request_that_is_no_http_is_refused_with_the_reason(
    sent: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And what comes behind it is not served: it may be meant as a part of it."""
    caplog.set_level(logging.INFO, "djl_python.access")
    async with running() as site, site.connect() as (reader, writer):
        writer.write(sent + PIPELINED)
        status, headers, said = await answer_of(reader)
        assert (status, headers["connection"]) == (400, "close")
        body = json.loads(said)
        message = body["message"] if "message" in body else body["error"]
        assert message.startswith("the request is no valid HTTP: ") and why in message
        assert await reader.read() == b""
        assert re.fullmatch(r'.* "(POST /predictions/m| \*)" 400 \d+ ms', caplog.messages[-1])


SHAPES: list[tuple[bytes, dict[str, Any]]] = [
    (b"/v1/chat/completions", {"error": {"type": "invalid_request_error", "param": None, "code": None}}),
    (b"/generate", {"error_type": "validation"}),
    (b"/v2/models/m/generate", {}),
    (b"/invocations", {"code": 400, "type": "BadRequestException"}),
    (b"/nowhere", {"code": 400, "type": "BadRequestException"}),
]


@pytest.mark.parametrize(("path", "shape"), SHAPES)
@pytest.mark.parametrize("broken", [b"Content-Length: x\r\n\r\n", b"\x00: 1\r\n\r\n"], ids=["body", "head"])
async def test_the_refusal_has_the_shape_of_its_path(path: bytes, shape: dict[str, Any], broken: bytes) -> None:
    async with running() as site, site.connect() as (reader, writer):
        writer.write(b"POST %s HTTP/1.1\r\nHost: localhost\r\n%s" % (path, broken))
        status, _, said = await answer_of(reader)
        body = json.loads(said)
        assert status == 400
        error = body["error"] if isinstance(body.get("error"), dict) else body
        assert "no valid HTTP" in (error.get("message") or error.get("error"))
        wanted = shape.get("error", shape)
        assert {name: error[name] for name in wanted} == wanted


async def test_a_refusal_waits_for_the_answer_before_it(caplog: pytest.LogCaptureFixture) -> None:
    """A client that sends a request, and garbage behind it, reads the answer before it reads that it sent garbage."""
    caplog.set_level(logging.INFO, "djl_python.access")
    async with running() as site:
        with socket.create_connection(("127.0.0.1", site.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
            body = b'{"do": "stream", "n": 20, "size": 100000}'
            head = b"POST /invocations HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
            client.sendall(head + body + b"GET /%s HTTP/1.1\r\n" % (b"a" * 70_000))
            await until(lambda: any('" 431 ' in message for message in caplog.messages))
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(client, b"more: of it\r\n" * 10_000)
            received = b""
            while piece := await loop.sock_recv(client, 1 << 20):
                received += piece
        assert len(received) > 2_000_000
        assert b"HTTP/1.1 431 Request Header Fields Too Large" in received[2_000_000:]


async def test_a_client_that_ends_its_side_has_gone() -> None:
    """As with nginx and most others: whether it has half-closed or gone can't be seen before an answer is written."""
    async with running() as site, site.connect() as (reader, writer):
        body = b'{"do": "hang"}'
        writer.write(
            b"POST /invocations HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        await until(lambda: site.model.pool.busy == 1)
        writer.write_eof()
        await until(lambda: site.model.pool.busy == 0)
        assert await reader.read() == b""
