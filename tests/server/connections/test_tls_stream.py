"""Servers that speak TLS, and clients that do, do half, or don't."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import openai
import pytest
import requests

from djl_python.server.tls import certificates
from tests.certificates import Pair
from tests.server.harness import Site, running

GET = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
async def site(pair: Pair) -> AsyncIterator[Site]:
    async with running(**pair.settings, header_timeout_s=0.5) as made:
        yield made


@contextlib.asynccontextmanager
async def connected(
    site: Site, context: ssl.SSLContext | None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("localhost" if context else "127.0.0.1", site.port, ssl=context)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def asked(site: Site, context: ssl.SSLContext) -> bytes:
    """The first line of an answer."""
    async with connected(site, context) as (reader, writer):
        writer.write(GET)
        return await reader.readline()


async def test_clients_that_trust_the_certificate_are_answered(site: Site, pair: Pair) -> None:
    url = f"https://127.0.0.1:{site.port}"
    async with httpx.AsyncClient(verify=pair.trusted(), base_url=url) as client:
        assert (await client.get("/ping")).status_code == 200
        order = b'{"do": "stream", "n": 3, "size": 300000, "gap_s": 0.01}'  # each more than a record of TLS has
        answer = await client.post("/invocations", content=order + b" " * 300_000)
        assert [len(line["pad"]) for line in map(json.loads, answer.text.splitlines())] == [300_000] * 3
    said = await asyncio.to_thread(requests.get, f"{url}/ping", verify=str(pair.certificate), timeout=10)
    assert said.status_code == 200
    own = httpx2.AsyncClient(verify=pair.trusted())
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", http_client=own) as api:
        assert [model.id async for model in api.models.list()] == ["m"]
    async with httpx.AsyncClient(verify=ssl.create_default_context(), base_url=url) as stranger:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await stranger.get("/ping")


async def test_tls_1_2_and_1_3_with_http_1_1_are_spoken(site: Site, pair: Pair) -> None:
    context = pair.trusted()
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with connected(site, context) as (_, writer):
        tls = writer.get_extra_info("ssl_object")
        assert (tls.version(), tls.selected_alpn_protocol()) == ("TLSv1.3", "http/1.1")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert (await asked(site, context)).startswith(b"HTTP/1.1 200 ")
    with pytest.warns(DeprecationWarning):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asked(site, context)


async def test_plain_http_is_told_so(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    async with connected(site, None) as (reader, writer):
        writer.write(GET)
        answer = await asyncio.wait_for(reader.read(), 5)
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.endswith(
        b"this address is https, and the request was plain HTTP\n"
    )
    async with connected(site, None) as (reader, writer):
        writer.write(b"\x16\x03\x01 no TLS")
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 5)
    assert caplog.messages == []


async def test_the_end_of_an_answer_is_told_from_a_connection_that_broke(site: Site, pair: Pair) -> None:
    """TLS's own end, without which a client can't know: in HTTP/1.0 the connection's end is that of a stream."""
    with socket.create_connection(("127.0.0.1", site.port), timeout=5) as plain:
        answer = await asyncio.to_thread(_answer_in_http_1_0, plain, pair.trusted())
    assert answer.startswith(b"HTTP/1.1 200 ") and b"Connection: close" in answer


def _answer_in_http_1_0(plain: socket.socket, context: ssl.SSLContext) -> bytes:
    body = b'{"do": "stream", "n": 2, "gap_s": 0.01}'
    with context.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False) as client:
        client.sendall(b"POST /invocations HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        answer = b""
        while piece := client.recv(1 << 16):
            answer += piece
        return answer


async def test_handshakes_that_do_not_go_on_are_ended_and_delay_nobody(site: Site) -> None:
    async with connected(site, None) as (reader, writer), connected(site, None) as (silent, _):
        writer.write(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a hello
        assert (await site.client.get("/ping")).status_code == 200
        assert await asyncio.wait_for(asyncio.gather(reader.read(), silent.read()), 5) == [b"", b""]  # type: ignore[comparison-overlap]


async def test_a_renewed_certificate_is_that_of_new_connections(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "LOOK_EVERY_S", 0)
    mine = Pair(tmp_path / "cert.pem", tmp_path / "key.pem")
    other = Pair.made(tmp_path / "other")
    shutil.copy(pair.certificate, mine.certificate)
    shutil.copy(pair.key, mine.key)
    async with running(**mine.settings) as site, connected(site, pair.trusted()) as (reader, writer):
        writer.write(GET)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        shutil.copy(other.certificate, mine.certificate)
        assert (await asked(site, pair.trusted())).startswith(b"HTTP/1.1 200 ")  # the key is still the old one
        shutil.copy(other.key, mine.key)
        assert (await asked(site, other.trusted())).startswith(b"HTTP/1.1 200 ")
        with pytest.raises(ssl.SSLCertVerificationError):
            await asked(site, pair.trusted())
        await reader.readuntil(b"\n}\n")
        writer.write(GET)  # on the connection that was open
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(("settings", "without"), [({}, False), ({"client_certificates": "optional"}, True)])
async def test_clients_certificates(pair: Pair, tmp_path: Path, settings: dict[str, Any], without: bool) -> None:
    client, stranger = Pair.made(tmp_path / "client"), Pair.made(tmp_path / "stranger")
    async with running(**pair.settings, client_ca_file=str(client.certificate), **settings) as site:
        for shown, welcome in ((client, True), (stranger, False), (None, without)):
            context = pair.trusted()
            if shown is not None:
                context.load_cert_chain(shown.certificate, shown.key)
            try:
                answer = await asked(site, context)
            except (ssl.SSLError, ConnectionError):
                answer = b""
            assert answer.startswith(b"HTTP/1.1 200 ") is welcome
