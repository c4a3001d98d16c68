"""Bodies that clients compress."""

from __future__ import annotations

import gzip
import json
import zlib

import httpx
import pytest

from tests.server.harness import Site, running

ORDER = json.dumps({"do": "echo"}).encode()


async def send(site: Site, content: bytes, coding: str = "gzip", path: str = "/invocations") -> httpx.Response:
    return await site.client.post(path, content=content, headers={"content-encoding": coding})


@pytest.mark.parametrize(
    ("coding", "content"),
    [
        ("gzip", gzip.compress(ORDER, mtime=0)),
        ("GZIP", gzip.compress(ORDER[:5], mtime=0) + gzip.compress(ORDER[5:], mtime=0)),
        ("x-gzip", gzip.compress(ORDER, mtime=0)),
        ("deflate", zlib.compress(ORDER)),
        ("gzip", gzip.compress(ORDER.ljust(1_000_000))),
        ("identity", ORDER),
        ("", ORDER),
    ],
)
async def test_a_worker_gets_what_the_body_stands_for(coding: str, content: bytes) -> None:
    async with running() as site:
        answer = await send(site, content, coding)
        assert answer.status_code == 200
        if coding not in ("", "identity"):
            assert not {"content-encoding", "content-length"} & answer.json()["headers"].keys()
        assert site.front_end.bodies.held_bytes == 0


async def test_a_page_takes_a_compressed_body() -> None:
    async with running() as site:
        assert (
            await send(site, gzip.compress(b'{"ready": true}', mtime=0), path="/v2/repository/index")
        ).status_code == 200


async def test_a_body_that_arrives_byte_by_byte_is_decoded() -> None:
    async with running() as site, site.connect() as (reader, writer):
        content = gzip.compress(ORDER, mtime=0)
        head = "POST /invocations HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
        writer.write((head % len(content)).encode())
        for byte in content:
            writer.write(bytes([byte]))
            await writer.drain()
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (ORDER, "the body is not gzip data: "),
        (gzip.compress(ORDER, mtime=0) + b"more", "the body is not gzip data: "),
        (gzip.compress(ORDER, mtime=0)[:-10], "the body's gzip data has no end"),
        (gzip.compress(ORDER, mtime=0)[:-8] + bytes(8), "the body is not gzip data: "),
    ],
)
@pytest.mark.parametrize("path", ["/invocations", "/v1/chat/completions", "/v2/models/m/infer"])
async def test_a_damaged_body_is_refused_in_the_dialects_shape(content: bytes, says: str, path: str) -> None:
    async with running() as site:
        refused = await send(site, content, path=path)
        plain = await site.client.post(path, content=b"{}", headers={"content-encoding": "br"})
        assert refused.status_code == 400 and plain.status_code in (400, 415)
        assert says in refused.text and "got 'br', expected gzip, deflate or identity" in plain.text
        assert refused.json().keys() == plain.json().keys()
        assert site.front_end.bodies.held_bytes == 0
        assert (await site.post(do="echo")).status_code == 200


async def test_a_decompressed_body_has_the_limit_of_others() -> None:
    async with running(max_request_size=1_000_000) as site:
        for length in (1_000_001, 1 << 28):
            bomb = _zeros(length)
            refused = await send(site, bomb)
            assert refused.status_code == 413 and "max_request_size, which is 1000000 bytes" in refused.text
        assert site.front_end.bodies.held_bytes == 0


def _zeros(length: int) -> bytes:
    made = zlib.compressobj(wbits=31)
    whole = b"".join(made.compress(bytes(1 << 20)) for _ in range(length >> 20))
    return whole + made.compress(bytes(length % (1 << 20))) + made.flush()
